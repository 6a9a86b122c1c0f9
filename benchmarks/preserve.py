"""What right gradients in spite of in-place writes cost: `preserve`, PyTorch's own context, a clone of every save."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import modes
import torch
from modes import in_both_parts, paired, part, repeats, write_readme
from workloads import WORKLOADS, Step

OVERWRITTEN = (0, 8, 32)
"""How many activations are overwritten."""
NAMES = ("mlp", "mlp-array", "lstm", "gpt-tiny", "resnet-tiny")
MODES = ("versions", "contents", "preserve", "allow-mutation", "clone-at-save")
WATCHING = ("versions", "contents")
"""The modes that raise where activations are overwritten. They are measured on the same program out of place."""
LAYERS, WIDTH = 32, 1 << 19


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


def ratio(mode: str, make: Step, bare: Step, pairs: int, device: str) -> float:
    """The median ratio of time, pair by pair."""
    repeat = repeats(bare, device)
    return statistics.median(ours / of_bare for ours, of_bare in paired(mode, make, bare, repeat, pairs, device))


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
        with modes.MODES[mode]():
            step()
    Path("/proc/self/clear_refs").write_text("5")
    before = _high_water(status)
    with modes.MODES[mode]():
        step()
    print(_high_water(status) - before)


def _high_water(status: Path) -> float:
    return next(int(line.split()[1]) / 1000 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def table(names: list[str], pairs: int, device: str) -> Iterator[str]:
    """The lines of the tables of this process, each as soon as it is measured."""
    yield f"| time, ratio to bare; {part()} | {' | '.join(MODES)} |"
    yield f"|---|{'---:|' * len(MODES)}"
    for workload in WORKLOADS:
        if workload.name in names:
            torch.manual_seed(0)
            with torch.device(device):
                step = workload.build()
            step()
            row = [f"{ratio(mode, step, step, pairs, device):.2f}" for mode in MODES]
            yield f"| {workload.says} | {' | '.join(row)} |"
    for times in OVERWRITTEN:
        with torch.device(device):
            bare, ours = overwriting(times, in_place=False), overwriting(times, in_place=True)
        row = [
            "raises" if mode in WATCHING and times else f"{ratio(mode, ours, bare, pairs, device):.2f}"
            for mode in MODES
        ]
        yield f"| {times} of {LAYERS} activations overwritten | {' | '.join(row)} |"
    if device != "cpu":
        return
    yield ""
    yield f"| peak memory of a step, MB; {part()} | bare | {' | '.join(MODES)} |"
    yield f"|---|{'---:|' * (1 + len(MODES))}"
    for times in OVERWRITTEN:
        row = [f"{peak(mode, times):.0f}" for mode in ("bare", *MODES)]
        yield f"| {times} of {LAYERS} activations overwritten | {' | '.join(row)} |"


def main() -> None:
    """Measure, print, and write the README's tables if asked to: with Python alone, and with the native part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--device", default="cpu", help="where the tensors are")
    parser.add_argument("--write-readme", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("MODE", "TIMES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        _print_peak(options.peak[0], int(options.peak[1]))
    elif options.write_readme:
        write_readme("preserve", in_both_parts(__file__, "--pairs", str(options.pairs)), options.device)
    else:
        for line in table(options.workloads, options.pairs, options.device):
            print(line, flush=True)


if __name__ == "__main__":
    main()
