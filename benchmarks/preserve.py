"""What right gradients in spite of in-place writes cost: `preserve`, PyTorch's own context, a clone of every save."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from overhead import README, machine, part
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from workloads import WORKLOADS, Step

BEGIN, END = "<!-- preserve -->\n", "<!-- end of preserve -->\n"
WATCHING = ("versions", "contents")
"""The modes that raise where activations are overwritten. They are measured on the same program out of place."""
LAYERS, WIDTH = 32, 1 << 19


def _preserve() -> AbstractContextManager[object]:
    import noclobber

    return noclobber.preserve()


def _watch(*, contents: bool = True) -> AbstractContextManager[object]:
    import noclobber

    return noclobber.watch(contents=contents)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "bare": nullcontext,
    "versions": lambda: _watch(contents=False),
    "contents": _watch,
    "preserve": _preserve,
    "allow-mutation": allow_mutation_on_saved_tensors,
    "clone-at-save": lambda: saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor),
}


def overwriting(times: int, in_place: bool) -> Step:
    """32 layers of 2 MB that keep their output, of which the first `times` are then overwritten in place."""
    x = torch.randn(WIDTH, requires_grad=True)

    def step() -> None:
        h = x
        for layer in range(LAYERS):
            h = h.tanh()
            if layer < times:
                h = h.mul_(0.5) if in_place else h * 0.5
        h.sum().backward()
        x.grad = None

    return step


def ratio(mode: str, make: Step, bare: Step, pairs: int) -> float:
    """The median ratio of CPU time, pair by pair."""
    repeat = 1

    def sample(name: str, step: Step) -> float:
        with MODES[name]():
            step()
            begin = time.process_time()
            for _ in range(repeat):
                step()
            return (time.process_time() - begin) / repeat

    repeat = max(1, round(0.03 / sample("bare", bare)))
    ratios = []
    for pair in range(pairs):
        took = {}
        for name, step in [(mode, make), ("bare", bare)][:: 1 - 2 * (pair % 2)]:
            took[name] = sample(name, step)
        ratios.append(took[mode] / took["bare"])
    return statistics.median(ratios)


def peak(mode: str, times: int) -> float:
    """The peak of the resident set in MB over one step, of a process of its own; 0 where it can't be told."""
    environ = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peak", mode, str(times)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return float(run.stdout)


def _print_peak(mode: str, times: int) -> None:
    step = overwriting(times, in_place=mode not in ("bare", *WATCHING))
    status = Path("/proc/self/status")
    for _ in range(2):
        with MODES[mode]():
            step()
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water(status)
    with MODES[mode]():
        step()
    print(_high_water(status) - before)


def _high_water(status: Path) -> float:
    return next(int(line.split()[1]) / 1000 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def table(pairs: int) -> Iterator[str]:
    """The lines of the tables of this process, each as soon as it is measured."""
    modes = [mode for mode in MODES if mode != "bare"]
    yield f"| time, ratio to bare; {part()} | {' | '.join(modes)} |"
    yield f"|---|{'---:|' * len(modes)}"
    for workload in WORKLOADS[:4]:
        torch.manual_seed(0)
        step = workload.build()
        step()
        row = [f"{ratio(mode, step, step, pairs):.2f}" for mode in modes]
        yield f"| {workload.says} | {' | '.join(row)} |"
    for times in (0, 8, 32):
        bare = overwriting(times, in_place=False)
        row = [
            "raises"
            if mode in WATCHING and times
            else f"{ratio(mode, overwriting(times, in_place=True), bare, pairs):.2f}"
            for mode in modes
        ]
        yield f"| {times} of {LAYERS} activations overwritten | {' | '.join(row)} |"
    yield ""
    yield f"| peak memory of a step, MB; {part()} | {' | '.join(MODES)} |"
    yield f"|---|{'---:|' * len(MODES)}"
    for times in (0, 8, 32):
        row = [f"{peak(mode, times):.0f}" for mode in MODES]
        yield f"| {times} of {LAYERS} activations overwritten | {' | '.join(row)} |"


def main() -> None:
    """Measure, print, and write the README's tables if asked to: with Python alone, and with the native part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--write-readme", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("MODE", "TIMES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        _print_peak(options.peak[0], int(options.peak[1]))
    elif options.write_readme:
        command = [sys.executable, __file__, "--pairs", str(options.pairs)]
        environs = [{**os.environ, "NOCLOBBER_PURE": pure} for pure in "10"]
        runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=one) for one in environs]
        before, rest = README.read_text().split(BEGIN)
        tables = "\n".join(run.stdout for run in runs)
        README.write_text(f"{before}{BEGIN}{machine()}\n\n{tables}{END}{rest.split(END)[1]}")
    else:
        for line in table(options.pairs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
