"""What `noclobber run` adds to the start of a program: pairs of processes that only import, in their CPU time."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from modes import machine, write_readme

PROGRAMS = {
    "import torch": "torch",
    "import torch._dynamo": "torch",
    "from transformers import GPT2LMHeadModel": "transformers",
    "import lightning": "lightning",
}
"""The programs, and the package that each needs."""
RUN = ("-m", "noclobber", "run")
TO_REACH = 0.2
"""The most seconds that the median may be above bare."""


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of CPU time: of the bare program, and how much more each run took, over the pairs."""

    program: str
    bare: float
    more: list[float]
    ratio: float


def cpu_seconds(program: str, *words: str) -> float:
    """CPU time of a Python that runs a program, and of its children.

    It writes and reads bytecode, as an installed package has it.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, *words, "-c", program], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return used.ru_utime + used.ru_stime


def measure(program: str, pairs: int) -> Result:
    """Bare and under `noclobber run` in turn, the order turned round from pair to pair; the first of each is not
    counted."""
    cpu_seconds(program)
    cpu_seconds(program, *RUN)
    bare: list[float] = []
    watched: list[float] = []
    for pair in range(pairs):
        for words in ((), RUN) if pair % 2 else (RUN, ()):
            (watched if words else bare).append(cpu_seconds(program, *words))
    more = [one - other for one, other in zip(watched, bare, strict=True)]
    ratio = statistics.median(one / other for one, other in zip(watched, bare, strict=True))
    return Result(program, statistics.median(bare), more, ratio)


def table(programs: list[str], pairs: int) -> str:
    """A Markdown table, a row for a program. What is not installed has a row that says so."""
    rows = [
        "| program | bare | more, median | least | most | ratio | pairs | to reach |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for program in programs:
        if find_spec(PROGRAMS[program]) is None:
            rows.append(f"| `{program}` | {PROGRAMS[program]} is not installed |  |  |  |  |  |  |")
            continue
        one = measure(program, pairs)
        rows.append(
            f"| `{program}` | {one.bare:.2f} s | {statistics.median(one.more):.2f} s | {min(one.more):.2f} s"
            f" | {max(one.more):.2f} s | {one.ratio:.2f} | {pairs} | {TO_REACH:.2f} s |"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure, print, and write the README's table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    text = table(options.programs, options.pairs)
    print(f"{machine()}\n\n{text}", end="")
    if options.write_readme:
        write_readme("startup", text)


if __name__ == "__main__":
    main()
