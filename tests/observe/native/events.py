"""What noclobber holds of small training programs, event by event, as text that can be compared between processes."""

import functools
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.model.reports.report import finding_out
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.native import bridge
from noclobber.observe.witness.layout import geometry

Look = Callable[[], None]


def mlp(look: Look) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.ones(5, 4)).pow(2).mean()
        look()
        loss.backward()
        optimizer.step()
    look()


def recurrent(look: Look) -> None:
    cell = nn.LSTMCell(3, 4)
    h = c = torch.zeros(2, 4)
    out = torch.zeros(6, 2, 4)
    for t in range(6):
        h, c = cell(torch.ones(2, 3), (h, c))
        out[t] = h
    look()
    out.sum().backward()
    look()


def convolutions(look: Look) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(2)
    )
    images = torch.arange(128.0).view(2, 1, 8, 8)
    net(images)
    loss = F.cross_entropy(net(images), torch.tensor([0, 1]))
    look()
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad  # type: ignore[operator]
    look()


def views(look: Look) -> None:
    x = torch.arange(12.0).view(3, 4).t().requires_grad_()
    y = x * 2
    one, other = y.chunk(2)
    z = one.exp() * other.contiguous().narrow(0, 0, 2)
    rows = z.unbind(1)
    w = torch.stack(rows).transpose(0, 1)[:, ::2]
    w.mul_(3)
    large = torch.ones(300, 100, requires_grad=True)
    s = (large.sigmoid() * large.sigmoid().t().contiguous().t()).expand(2, 300, 100)
    look()
    (w.sum() + (s * s).sum()).backward()
    torch._foreach_add_([x.detach(), large.detach()], 1.0)  # type: ignore[attr-defined]
    look()


def regions(look: Look) -> None:
    weight = torch.ones(4, 4, requires_grad=True)

    def region(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh()

    x = torch.ones(2, 4, requires_grad=True)
    for reentrant in (False, True):
        y: Any = checkpoint(region, x * 1, use_reentrant=reentrant)
        look()
        y.sum().backward()
    look()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def functions(look: Look) -> None:
    x = torch.arange(3.0, requires_grad=True)
    y = Cube.apply(x.sin())
    look()
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    look()
    gradient.sum().backward()
    look()


def overwritten(look: Look) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    look()
    y.data.mul_(2)
    z = x.sigmoid()
    z[0] = 1
    (y.sum() + (x * x.detach()).sum()).backward()
    try:
        z.sum().backward()
    except RuntimeError:
        look()


def without_gradients(look: Look) -> None:
    """Write under `no_grad` to what is saved, what is not, and what a view of the graph shows."""
    x, w, cache = torch.ones(3, requires_grad=True), torch.ones(3), torch.zeros(2, 3)
    y, z = (x * w[:2].sum() * w).sum(), x.exp()
    look()
    with torch.no_grad():
        cache[0] = w
        cache[1].copy_(w)
        look()
        w[:1].mul_(2)
        z[:1].mul_(2)
        x.add_(1)
        cache.view(-1).add_(1)
        look()
    for result in (y, z.sum()):
        with suppress(RuntimeError):
            result.backward()
    look()


def two_nets(look: Look) -> None:
    """Step one net while the graph of another lives; then step while a graph has saved what the step writes."""
    maker, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    made = maker(torch.ones(2, 3)).tanh()
    for _ in range(2):
        optimizer.zero_grad()
        critic(made.detach()).sum().backward()
        optimizer.step()
        look()
    loss = critic(made).sum()
    optimizer.step()
    look()
    with suppress(RuntimeError):
        loss.backward()
    look()


class Descent(torch.optim.Optimizer):
    """An optimizer of the program's own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(one.grad, alpha=-0.1)


def steps(look: Look) -> None:
    """Step with a closure that runs forward and backward or raises, and with an optimizer of the program's own."""
    net, memory = nn.Linear(3, 1), torch.zeros(2, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        memory.add_(1)
        loss = net(memory * 2).mul_(3).square().sum()
        look()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        look()
    with suppress(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.step()
    with torch.no_grad():
        net.weight.mul_(3)  # belongs to no step
    look()
    loss = net(memory * 2).square().sum()
    Descent(net.parameters(), {}).step()
    look()
    loss.backward()
    look()


class Writer:
    """Writes from the functions that the interpreter calls by itself."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target

    def __enter__(self) -> None:
        self.target.add_(1)

    def __exit__(self, *_: object) -> None:
        self.target.add_(2)

    def __next__(self) -> torch.Tensor:
        return self.target.add_(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.target[index].add_(4)

    def __add__(self, other: float) -> torch.Tensor:
        return self.target.add_(other)

    def __del__(self) -> None:
        self.target.add_(5)


def frames(look: Look) -> None:
    """Write in each kind of frame that the interpreter makes, also while a tool looks on."""
    x = torch.zeros(4)
    y = torch.ones(4, requires_grad=True).exp()

    def generated() -> Iterator[torch.Tensor]:
        for _ in range(2):
            yield x.add_(1)
        yield from (x.mul_(factor) for factor in (2, 3))

    async def awaited() -> torch.Tensor:
        return x.add_(1)

    async def awaiting() -> torch.Tensor:
        return (await awaited()).add_(2)

    def everywhere() -> None:
        list(generated())
        [x.add_(number) for number in range(2)]
        with suppress(StopIteration):
            awaiting().send(None)
        with Writer(x):
            sorted(range(2), key=lambda number: float(x.add_(number).sum()))
        writer = Writer(x)
        next(writer), writer[1], writer + 3  # type: ignore[call-overload]
        del writer
        exec("x.add_(4)", {"x": x})
        x.add_(
            1,
            alpha=2,
        )

        class Body:
            held = x.add_(5)

        functools.partial(Body.held.add_, 1)()
        functools.reduce(lambda done, number: done.add_(number), (6, 7), x)

    everywhere()
    look()
    monitoring: Any = vars(sys).get("monitoring")  # since Python 3.12
    if monitoring is not None:
        monitoring.use_tool_id(monitoring.PROFILER_ID, "tests")
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.LINE | monitoring.events.INSTRUCTION)
        everywhere()
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
    thread = threading.Thread(target=everywhere)
    thread.start()
    thread.join()
    look()
    y.sum().backward()


PROGRAMS = (
    mlp,
    recurrent,
    convolutions,
    views,
    regions,
    functions,
    overwritten,
    without_gradients,
    two_nets,
    steps,
    frames,
)


def seen(program: Callable[[Look], None], contents: bool) -> list[object]:
    """Return the live saves and the writes at each call of `look`, and the findings."""
    events: list[object] = []
    storages: dict[int, int] = {}

    def number(key: int | None) -> int | None:
        return None if key is None else storages.setdefault(key, len(storages))

    def where(place: Any) -> object:
        return None if place is None else (place[0].co_name, place[1], where(place[2]))

    def look() -> None:
        handles = CONTEXT.live.all()
        first, saves = min((one.node for one in handles), default=0), []
        for one in handles:
            about = (type(one).__name__, one.node - first, one.version, str(geometry(one.alias)))
            kept = ("save", *about, one.tensor() is not None, one.digest, where(one.place))
            saves.append((one.node, one.moment, str(kept), kept))
        events.extend(kept for *_, kept in sorted(saves))  # the live table has no order
        for noted in CONTEXT.memory.recent:
            step = noted.step and noted.step.optimizer
            about = (noted.written.op, noted.version, str(noted.geometry), step, noted.in_backward, noted.untracked)
            events.append(("write", *about, where(noted.place)))
        events.extend(("views", op, where(place)) for _, op, place in CONTEXT.memory.views)

    torch.manual_seed(0)
    with warnings.catch_warnings(), noclobber.watch(contents=contents) as watch:
        warnings.simplefilter("ignore")
        program(look)
    told = map(finding_out, watch.findings)
    events.extend((one["code"], str(one["save"]), str(one["writes"])) for one in told)
    return events


if __name__ == "__main__":
    torch.set_num_threads(1)
    both = {f"{one.__name__} {contents}": seen(one, contents) for one in PROGRAMS for contents in (False, True)}
    json.dump({"why not native": bridge.why_not(), **both}, sys.stdout)
