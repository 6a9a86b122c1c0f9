"""What noclobber and PyTorch's own checks cost a training step: paired and interleaved.

On the CPU it is CPU time of the process; on an accelerator it is the time until all that was begun there is done.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from modes import machine, paired, part, repeats, sample, write_readme
from workloads import WORKLOADS, Workload

MODES = ("bare", "install", "versions", "contents", "anomaly", "allow-mutation")
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


def measure(workload: Workload, mode: str, pairs: int, device: str) -> Result:
    """Bare and mode in turn, the order turned round from pair to pair, on one model in one process.

    Entering and leaving the mode is not timed; nor is the first step inside, so that what is timed is the steady state.
    """
    torch.manual_seed(0)
    with torch.device(device):
        step = workload.build()
    for _ in range(3):
        step()
    repeat = repeats(step, device)
    sample(mode, step, repeat, device)
    ratios, bare = [], []
    for ours, of_bare in paired(mode, step, step, repeat, pairs, device):
        bare.append(of_bare)
        ratios.append(ours / of_bare)
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


def measured_in(part: str, names: list[str], modes: list[str], pairs: int, device: str) -> list[Result]:
    """The same in a process of its own, with Python alone or with the native part."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        words = ["--part", part, "--workloads", *names, "--modes", *modes]
        words += ["--device", device, "--pairs", str(pairs), "--json", str(file)]
        env = {**os.environ, "NOCLOBBER_PURE": str(int(part == "python"))}
        subprocess.run([sys.executable, __file__, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        return [Result(**one) for one in json.loads(file.read_text())["results"]]


def table(results: list[Result]) -> str:
    """A Markdown table, a row for a workload and a mode, with the ratios to reach where there are some."""
    rows = [
        "| workload | bare step | mode | by | median | least | most | pairs | to reach |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    for workload in WORKLOADS:
        of_one = [one for one in results if one.workload == workload.name]
        for one in sorted(of_one, key=lambda one: MODES.index(one.mode)):
            ratios, ours = getattr(workload, one.mode, None), one.mode in OURS
            target = "" if ratios is None else f"{ratios[one.part == 'native']:.2f}"
            rows.append(
                f"| {workload.says} | {one.bare_ms:.2f} ms | {one.mode} | {one.part if ours else ''}"
                f" | {one.median:.2f} | {one.least:.2f} | {one.most:.2f} | {one.pairs} | {target} |"
            )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure what the options ask for, and print the table."""
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--pairs", type=int, default=21, help="pairs of samples for each workload and mode")
    parts = ("both", "python", "native")
    parser.add_argument("--part", choices=parts, default="both", help="what takes the saves and writes")
    parser.add_argument("--device", default="cpu", help="where the tensors are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--write-readme", action="store_true", help="put the table into benchmarks/README.md")
    options = parser.parse_args()

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
        write_readme("results", table(results), options.device)


if __name__ == "__main__":
    main()
