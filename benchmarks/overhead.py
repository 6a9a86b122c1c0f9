"""What noclobber and PyTorch's own checks cost a training step: paired and interleaved.

On the CPU it is CPU time of the process; on an accelerator it is the time until all that was begun there is done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from workloads import WORKLOADS, Step, Workload

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
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


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "bare": nullcontext,
    "install": _install,
    "versions": lambda: _watch(contents=False),
    "contents": _watch,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "allow-mutation": torch.autograd.graph.allow_mutation_on_saved_tensors,
}
"""How a step is run. `bare` against itself shows the noise of the machine."""
OURS = ("install", "versions", "contents")
"""The modes that the native part makes cheaper."""


@dataclass(frozen=True, slots=True)
class Result:
    """Ratios of time, mode to bare, over the pairs; `bare_ms` is the median of the bare step.

    `part` is "python" or "native": what takes the saves and writes.
    """

    workload: str
    mode: str
    part: str
    pairs: int
    median: float
    least: float
    most: float
    bare_ms: float


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


def measure(workload: Workload, mode: str, pairs: int, device: str) -> Result:
    """Bare and mode in turn, the order turned round from pair to pair, on one model in one process.

    Entering and leaving the mode is not timed; nor is the first step inside, so that what is timed is the steady state.
    """
    torch.manual_seed(0)
    with torch.device(device):
        step = workload.build()
    for _ in range(3):
        step()
    repeat = max(1, round(SHORTEST / seconds(step, 1, device)))

    def sample(name: str) -> float:
        with MODES[name]():
            step()
            return seconds(step, repeat, device)

    sample(mode)
    ratios, bare = [], []
    for pair in range(pairs):
        if pair % 2:
            other = sample(mode)
            bare.append(sample("bare"))
        else:
            bare.append(sample("bare"))
            other = sample(mode)
        ratios.append(other / bare[-1])
    return Result(
        workload.name,
        mode,
        part(),
        pairs,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        1000 * statistics.median(bare),
    )


def part() -> str:
    """What takes the saves and writes in this process."""
    import noclobber
    from noclobber.observe.native import bridge

    with noclobber.install():
        return "python" if bridge.why_not() else "native"


def measured_in(part: str, names: list[str], modes: list[str], pairs: int, device: str) -> list[Result]:
    """The same in a process of its own, with Python alone or with the native part."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        words = ["--part", part, "--workloads", *names, "--modes", *modes]
        words += ["--device", device, "--pairs", str(pairs), "--json", str(file)]
        env = {**os.environ, "NOCLOBBER_PURE": str(int(part == "python"))}
        subprocess.run([sys.executable, __file__, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        return [Result(**one) for one in json.loads(file.read_text())["results"]]


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


def table(results: list[Result]) -> str:
    """A Markdown table, a row for a workload and a mode, with the ratios to reach where there are some."""
    rows = [
        "| workload | bare step | mode | by | median | least | most | pairs | to reach |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    for workload in WORKLOADS:
        of_one = [one for one in results if one.workload == workload.name]
        for one in sorted(of_one, key=lambda one: list(MODES).index(one.mode)):
            ratios, ours = getattr(workload, one.mode, None), one.mode in OURS
            target = "" if ratios is None else f"{ratios[one.part == 'native']:.2f}"
            rows.append(
                f"| {workload.says} | {one.bare_ms:.2f} ms | {one.mode} | {one.part if ours else ''}"
                f" | {one.median:.2f} | {one.least:.2f} | {one.most:.2f} | {one.pairs} | {target} |"
            )
    return "\n".join(rows) + "\n"


def write_readme(results: list[Result]) -> None:
    """Put the results into README.md, between its two marks."""
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}{machine()}\n\n{table(results)}{END}{after}")


def main() -> None:
    """Measure what the options ask for, and print the table."""
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--pairs", type=int, default=21, help="pairs of samples for each workload and mode")
    parts = ("both", "python", "native")
    parser.add_argument("--part", choices=parts, default="both", help="what takes the saves and writes")
    parser.add_argument("--device", default="cpu", help="where the tensors are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--write-readme", action="store_true", help="put the table into benchmarks/README.md")
    options = parser.parse_args()

    if options.write_readme and options.device != "cpu":
        parser.error("--write-readme is for the CPU: the README has its table")
    torch.set_num_threads(1)
    results = []
    if options.part == "both":
        ours = [mode for mode in options.modes if mode in OURS]
        results += measured_in("python", options.workloads, options.modes, options.pairs, options.device)
        results += measured_in("native", options.workloads, ours, options.pairs, options.device) if ours else []
    else:
        for workload in WORKLOADS:
            for mode in options.modes if workload.name in options.workloads else ():
                results.append(measure(workload, mode, options.pairs, options.device))
        if any(one.part != options.part for one in results):
            parser.error(f"this process measures `{part()}`: set NOCLOBBER_PURE, or build the native part")
    print(f"{machine(options.device)}\n\n{table(results)}", end="")
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine(options.device), "results": [asdict(one) for one in results]}, indent=2)
        )
    if options.write_readme:
        write_readme(results)


if __name__ == "__main__":
    main()
