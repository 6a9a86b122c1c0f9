"""What all measurements share: the modes, the clock, the words for the machine, and the README's tables."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date
from pathlib import Path

import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from workloads import Step

README = Path(__file__).with_name("README.md")
SHORTEST = 0.03
"""Seconds that one sample takes at least: a step that is faster is repeated."""


@contextmanager
def _install() -> Iterator[None]:
    import noclobber

    handle = noclobber.install()
    try:
        yield
    finally:
        handle.uninstall()


def _watch(*, contents: bool = True) -> AbstractContextManager[object]:
    import noclobber

    return noclobber.watch(contents=contents)


def _preserve() -> AbstractContextManager[object]:
    import noclobber

    return noclobber.preserve()


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "bare": nullcontext,
    "install": _install,
    "versions": lambda: _watch(contents=False),
    "contents": _watch,
    "preserve": _preserve,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "allow-mutation": allow_mutation_on_saved_tensors,
    "clone-at-save": lambda: saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor),
}
"""How a step is run. `bare` against itself shows the noise of the machine."""


def seconds(step: Step, repeat: int, device: str) -> float:
    """The time of one step, as the mean of `repeat` in a row."""
    clock, wait = time.process_time, lambda: None
    if device != "cpu":
        clock, wait = time.perf_counter, torch.accelerator.synchronize
    wait()
    begin = clock()
    for _ in range(repeat):
        step()
    wait()
    return (clock() - begin) / repeat


def sample(mode: str, step: Step, repeat: int, device: str) -> float:
    """The time of one step in a mode. Entering and leaving it is not timed, nor is the first step inside."""
    with MODES[mode]():
        step()
        return seconds(step, repeat, device)


def repeats(step: Step, device: str) -> int:
    """How often a step is repeated in one sample."""
    return max(1, round(SHORTEST / sample("bare", step, 1, device)))


def paired(mode: str, step: Step, bare: Step, repeat: int, pairs: int, device: str) -> Iterator[tuple[float, float]]:
    """The time of a step in a mode and of a bare one, in turn; the order is turned round from pair to pair."""
    for pair in range(pairs):
        if pair % 2:
            ours = sample(mode, step, repeat, device)
            yield ours, sample("bare", bare, repeat, device)
        else:
            of_bare = sample("bare", bare, repeat, device)
            yield sample(mode, step, repeat, device), of_bare


def part() -> str:
    """What takes the saves and writes in this process."""
    import noclobber
    from noclobber.observe.native import bridge

    with noclobber.install():
        return "python" if bridge.why_not() else "native"


def machine(device: str = "cpu") -> str:
    """Processor, cores, accelerator, Python, torch, date."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line[:10] == "model name"
        ]
        name = models[0] if models else name
    if device != "cpu":
        name += f" with {torch.get_device_module(device).get_device_name()}"
    python, today = platform.python_version(), date.today().isoformat()
    return f"{name}, {os.cpu_count()} cores; Python {python}, torch {torch.__version__}; {today}"


def in_both_parts(script: str, *words: str) -> str:
    """What a script prints with Python alone, and with the native part."""
    command = [sys.executable, script, *words]
    environs = [{**os.environ, "NOCLOBBER_PURE": pure} for pure in "10"]
    runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=one) for one in environs]
    return "\n".join(run.stdout for run in runs)


def write_readme(mark: str, tables: str, device: str = "cpu") -> None:
    """Put tables into README.md between the two comments of this mark. They are those of the CPU."""
    if device != "cpu":
        raise SystemExit("--write-readme is for the CPU: the README has its tables")
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, rest = README.read_text().split(begin)
    README.write_text(f"{before}{begin}{machine()}\n\n{tables}{end}{rest.split(end)[1]}")
