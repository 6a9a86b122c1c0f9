"""How what noclobber costs grows with a program: the time of one item in a large program, against one in a small.

Each program consists of many equal items: layers, rows of one buffer, steps. What an item costs more in the large
program than in the small one is divided by what it costs more there in bare PyTorch, where caches and long graphs cost
too. 1 says that noclobber costs an item the same, whatever the size of the program.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from modes import in_both_parts, paired, part, repeats, write_readme
from torch import Tensor, nn
from workloads import Step

MODES = ("install", "versions", "contents", "preserve")
WIDTH = 16


def layers(count: int) -> Step:
    """Convolutions, each with a batch norm and a ReLU in place."""
    model = nn.Sequential(
        *(one for _ in range(count) for one in (nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)))
    )
    x = torch.randn(2, 4, 4, 4)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return step


def rows_assigned(count: int) -> Step:
    """Rows of a preallocated buffer, which is in the graph from the first on."""
    weight = torch.randn(WIDTH, requires_grad=True)

    def step() -> None:
        buffer = weight.new_zeros(count, WIDTH)
        for row in range(count):
            buffer[row] = weight.tanh()
        buffer.square().sum().backward()
        weight.grad = None

    return step


def rows_filled(count: int) -> Step:
    """Rows of a preallocated buffer outside of the graph, each of which is saved while the next ones are filled.

    Each has a version counter of its own, as PyTorch would refuse to go back through the first ones otherwise.
    """
    weight = torch.randn(WIDTH, requires_grad=True)
    source = torch.randn(WIDTH)
    buffer = torch.zeros(count, WIDTH)

    def step() -> None:
        total = weight.sum()
        for row in range(count):
            filled = buffer[row].data
            filled.copy_(source)
            total = total + (filled * weight).sum()
        total.backward()
        weight.grad = None

    return step


def rows_read(count: int) -> Step:
    """Rows of a preallocated buffer, each of which is saved while the next ones are assigned.

    PyTorch refuses that, as they have one version counter; `preserve` gives the right gradients.
    """
    weight = torch.randn(WIDTH, requires_grad=True)

    def step() -> None:
        buffer, total = weight.new_zeros(count, WIDTH), weight.sum()
        for row in range(count):
            buffer[row] = weight.tanh()
            total = total + buffer[row].square().sum()
        total.backward()
        weight.grad = None

    return step


def rows_apart(count: int) -> Step:
    """The same rows, each in memory of its own."""
    weight = torch.randn(WIDTH, requires_grad=True)

    def step() -> None:
        total = weight.sum()
        for _ in range(count):
            row = torch.zeros_like(weight)
            row[:] = weight.tanh()
            total = total + row[:].square().sum()
        total.backward()
        weight.grad = None

    return step


def views(count: int) -> Step:
    """Views of one base, each of which is saved; what is computed of them is written in place."""
    weight = torch.randn(WIDTH, requires_grad=True)
    base = torch.randn(count, WIDTH)

    def step() -> None:
        total = weight.sum()
        for row in range(count):
            total = total + (base[row] * weight).relu_().sum()
        total.backward()
        weight.grad = None

    return step


def steps(count: int) -> Step:
    """Steps of one recurrence, which share a weight; each writes its state in place."""
    weight = (torch.randn(WIDTH, WIDTH) / WIDTH).requires_grad_()
    source = torch.randn(4, WIDTH)

    def step() -> None:
        state: Tensor = source
        for _ in range(count):
            state = (state @ weight).add_(source).tanh_()
        state.sum().backward()
        weight.grad = None

    return step


def arrays(count: int) -> Step:
    """Steps of an episode. What each computes is saved, and numpy gets its memory and keeps it to the end."""
    weight = (torch.randn(WIDTH, WIDTH) / WIDTH).requires_grad_()
    state = torch.randn(1, WIDTH)

    def step() -> None:
        total, kept = weight.sum(), []
        for _ in range(count):
            chances = (state @ weight).softmax(-1)
            kept.append(chances.detach().numpy())
            total = total + chances[0, int(kept[-1].argmax())].log()
        total.backward()
        weight.grad = None

    return step


def threads(count: int) -> Step:
    """Threads, each with 20 layers of its own, which wait for each other before they run backward."""
    models = [
        nn.Sequential(*(one for _ in range(20) for one in (nn.Linear(8, 8), nn.ReLU(True)))) for _ in range(count)
    ]
    x = torch.randn(4, 8)

    def step() -> None:
        together = threading.Barrier(count)

        def run(model: nn.Module) -> None:
            loss = model(x).sum()
            together.wait()
            loss.backward()
            model.zero_grad()

        all_of_them = [threading.Thread(target=run, args=(model,)) for model in models]
        for one in all_of_them:
            one.start()
        for one in all_of_them:
            one.join()

    return step


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a small and a large size. `bare` stands for it where PyTorch refuses it."""

    says: str
    build: Callable[[int], Step]
    small: int
    large: int
    modes: tuple[str, ...] = MODES
    bare: Callable[[int], Step] | None = None


PROGRAMS = {
    "layers": Program("layers of conv, batch norm, ReLU in place", layers, 10, 640),
    "rows-assigned": Program("rows of one buffer, assigned", rows_assigned, 20, 640),
    "rows-filled": Program("rows of one buffer, filled through `.data` and saved", rows_filled, 20, 640),
    "rows-read": Program("rows of one buffer, saved while others are assigned", rows_read, 20, 640,
                         ("preserve",), rows_apart),
    "views": Program("views of one base", views, 20, 640),
    "steps": Program("steps of one graph", steps, 10, 640),
    "arrays": Program("steps of one graph, each handed to numpy", arrays, 20, 640),
    "threads": Program("threads", threads, 1, 16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Growth:
    """What an item costs in microseconds, and how much more of bare PyTorch's growth that is: a median over pairs."""

    small: float
    large: float
    ratio: float


def growth(program: Program, mode: str, pairs: int, device: str) -> Growth:
    """Bare and mode, small and large, in turn."""
    with torch.device(device):
        sizes = (program.small, program.large)
        ours = {size: program.build(size) for size in sizes}
        bare = {size: program.bare(size) for size in sizes} if program.bare is not None else ours
    repeat = {size: repeats(bare[size], device) for size in sizes}
    took: dict[int, list[float]] = {size: [] for size in sizes}
    ratios = []
    turns = [paired(mode, ours[size], bare[size], repeat[size], pairs, device) for size in sizes]
    for both in zip(*turns, strict=True):
        for size, (of_ours, _) in zip(sizes, both, strict=True):
            took[size].append(1e6 * of_ours / size)
        (ours_small, bare_small), (ours_large, bare_large) = both
        ratios.append((ours_large / bare_large) / (ours_small / bare_small))
    small, large = (statistics.median(took[size]) for size in sizes)
    return Growth(small, large, statistics.median(ratios))


def table(names: list[str], modes: list[str], pairs: int, device: str) -> Iterator[str]:
    """The lines of the table of this process, each as soon as it is measured."""
    yield f"| growth of an item; {part()} | from | to | {' | '.join(modes)} |"
    yield f"|---|---:|---:|{'---:|' * len(modes)}"
    for program in map(PROGRAMS.__getitem__, names):
        cells = []
        for mode in modes:
            if mode not in program.modes:
                cells.append("raises")
                continue
            one = growth(program, mode, pairs, device)
            cells.append(f"{one.ratio:.2f} ({one.small:.0f} to {one.large:.0f} us)")
        yield f"| {program.says} | {program.small} | {program.large} | {' | '.join(cells)} |"


def main() -> None:
    """Measure what the options ask for, and print the table; with Python alone and natively for the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="where the tensors are")
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.write_readme:
        tables = in_both_parts(__file__, "--pairs", str(options.pairs))
        write_readme("growth", tables, options.device)
    else:
        for line in table(options.programs, options.modes, options.pairs, options.device):
            print(line, flush=True)


if __name__ == "__main__":
    main()
