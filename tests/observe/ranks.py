"""What each of two gloo processes runs for test_ddp.py, bare and watched; results go to a file as JSON.

Lines that save and write are marked, as in test_seen.py. Both ranks make the same collective calls in the same order.
"""

import json
import sys
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel as DDP

import noclobber
from noclobber.observe.arming.recorder import CONTEXT


class Scaled(nn.Module):
    """Multiplies its weight by each of its buffers; the product keeps them for backward."""

    def __init__(self, buffers):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        for number in range(buffers):
            self.register_buffer(f"scale{number}", torch.ones(3))

    def forward(self, x):
        for scale in self.buffers():
            x = x + self.weight * scale  # saved
        return x.sum()


def training_step(rank, **how):
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 1)
    net = DDP(nn.Sequential(*layers), **how)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return [loss, *net.parameters(), *(p.grad for p in net.parameters()), *net.buffers()]


def accumulated_without_sync(rank):
    net = DDP(nn.Linear(4, 2))
    with net.no_sync():
        net(torch.randn(2, 4)).square().sum().backward()
    loss = net(torch.randn(2, 4)).square().sum()
    loss.backward()
    return [loss, *(p.grad for p in net.parameters())]


def two_forwards(rank, buffers=1, new_scale=50.0, **how):
    net = Scaled(buffers)
    spread = DDP(net, **how)
    first = spread(torch.zeros(3))
    if rank == 0:
        for name, buffer in list(net.named_buffers()):
            setattr(net, name, torch.full_like(buffer, new_scale))
    spread(torch.zeros(3))  # written
    with spread.no_sync():
        return list(torch.autograd.grad(first, net.weight))


def two_forwards_of_batch_norm(rank):
    net = DDP(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    first = net(torch.randn(8, 3))
    net(torch.randn(8, 3) * 10)
    loss = first.square().sum()
    loss.backward()
    return [loss, *(p.grad for p in net.parameters())]


def collective(rank, write, in_graph=False):
    x = torch.ones(4, requires_grad=True)
    w = torch.full((4,), rank + 1.0, requires_grad=in_graph)
    held = w.clone() if in_graph else w
    loss = (x * held).sum()  # saved
    write(rank, held.detach() if in_graph else held)
    return list(torch.autograd.grad(loss, x))


def all_reduce(rank, w):
    dist.all_reduce(w)  # written


def all_reduce_in_the_background(rank, w):
    dist.all_reduce(w, async_op=True).wait()  # written


def broadcast(rank, w):
    dist.broadcast(w, src=0)  # written


def all_gather(rank, w):
    dist.all_gather([w, torch.empty(4)], torch.full((4,), 5.0))  # written


def all_gather_into_tensor(rank, w):
    dist.all_gather_into_tensor(w, torch.full((2,), 5.0))  # written


def scatter(rank, w):
    parts = [torch.full((4,), 5.0), torch.full((4,), 6.0)] if rank == 0 else None
    dist.scatter(w, parts, src=0)  # written


def receive(rank, w):
    if rank == 0:
        dist.send(w, dst=1)
    else:
        dist.recv(w, src=0)  # written


def functional_all_reduce(rank, w):
    torch.ops._c10d_functional.all_reduce_(w, "sum", dist.group.WORLD.group_name)  # written
    functional.wait_tensor(w)


def communication_hook(rank):
    net = DDP(nn.Linear(3, 3))
    w = torch.ones(3)

    def hook(state, bucket):
        w.zero_()  # written
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    net.register_comm_hook(None, hook)
    x = torch.ones(3, requires_grad=True)
    product = x * w  # saved
    torch.autograd.backward([product.sum(), net(torch.ones(2, 3)).sum()])


def stale_save(rank):
    net = DDP(nn.Linear(3, 3))
    h = net(torch.ones(2, 3)).sigmoid()  # saved
    h += 1  # written
    h.sum().backward()


COLLECTIVES = [
    all_reduce,
    all_reduce_in_the_background,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    scatter,
    receive,
    functional_all_reduce,
]
# The first is deprecated from torch 2.13 on, which has the second.
NO_BROADCAST = {"broadcast_buffers" if torch.__version__ < "2.13" else "forward_sync_buffers": False}
PROGRAMS = {
    "step": training_step,
    "step_bucket_view": partial(training_step, gradient_as_bucket_view=True),
    "step_static_graph": partial(training_step, static_graph=True),
    "step_unused": partial(training_step, find_unused_parameters=True),
    "accumulated_without_sync": accumulated_without_sync,
    "one_buffer": two_forwards,
    "two_buffers": partial(two_forwards, buffers=2),
    "same_bytes": partial(two_forwards, new_scale=1.0),
    "no_broadcast": partial(two_forwards, **NO_BROADCAST),
    "batch_norm": two_forwards_of_batch_norm,
    "communication_hook": communication_hook,
    "stale_save": stale_save,
    **{write.__name__: partial(collective, write=write) for write in COLLECTIVES},
    "all_reduce_in_graph": partial(collective, write=all_reduce, in_graph=True),
}


def attempt(program, rank):
    torch.manual_seed(rank)
    try:
        return program(rank), None
    except RuntimeError as error:
        return None, error


def held():
    """How many saves are alive."""
    CONTEXT.live.sort()
    return sum(len(CONTEXT.live.at(storage)) for storage in list(CONTEXT.live.by_storage))


def watched(program, rank, on_write="record"):
    watch = noclobber.watch(on_write=on_write)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with watch:
            values, error = attempt(program, rank)
            left = held()
    lines = [{label.role: label.span.line for label in one.labels} for one in watch.findings]
    return {
        "values": values and [value.tolist() for value in values],
        "error": error and str(error).splitlines()[0],
        "left": left,
        "findings": [[one.code, where] for one, where in zip(watch.findings, lines, strict=True)],
        "notes": [note for one in watch.findings for note in one.notes],
        "unseen": list(watch.report.coverage.unseen),
    }


def main(rank, store, out):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    results = {}
    for name, program in PROGRAMS.items():
        values, error = attempt(program, rank)
        results[name] = {
            "bare": {"values": values and [value.tolist() for value in values], "error": error and str(error)},
            "watch": watched(program, rank),
            "raise": watched(program, rank, "raise"),
        }
    out.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
