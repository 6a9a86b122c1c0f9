"""Many random programs in worker processes: the counts by outcome, and every fault shrunk to a script that can be run.

python -m tests.fuzz.drive --programs 100000 [--seed 7] [--jobs 2] [--without numpy,hook]
python -m tests.fuzz.drive --preserve --without "hook,grad write"
python -m tests.fuzz.drive --seed 7 --number 4415
python -m tests.fuzz.drive --device sham
python -m tests.fuzz.drive --judge program.py [--large]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import torch

from tests.device import sham
from tests.fuzz import preserved
from tests.fuzz.judge import FAULTS, Outcome, Verdict, judge
from tests.fuzz.programs import random_program
from tests.fuzz.shrink import shrunk
from tests.fuzz.statements import KINDS, ON_THE_CPU, moved
from tests.observe.sizes import as_large

ALIKE = 3
"""Faults of one kind that a worker shrinks; the others are only counted."""
LIFE = 1500
"""Programs that a worker judges before another takes over: many leave cycles through the graph, which bare PyTorch does
not free either, and which make all that come after a little slower."""
CRASH = "crash"
CRASHES_BARE = "not judged: bare PyTorch crashes"
_FAULTS = (*(one.value for one in FAULTS), CRASH)
MOST_NAMED = 20
"""Faulty programs that are named at the end."""


class Task(NamedTuple):
    """Programs `first`, `first + step` ... below `end` of a seed."""

    seed: str
    first: int
    end: int
    step: int
    without: tuple[str, ...]
    preserve: bool = False
    device: str = "cpu"

    def source(self, number: int) -> str:
        program = random_program(f"{self.seed}-{number}", self.without)
        return program if self.device == "cpu" else moved(program, self.device)

    def judge(self, source: str, number: int) -> Verdict:
        """What is to be said of a program: of watching it, or of preserving what it saves. To every second program its
        tensors are large."""
        with as_large() if number % 2 else contextlib.nullcontext():
            return preserved.judge(source) if self.preserve else judge(source)

    def command(self, number: int) -> str:
        """What judges a program of the seed again."""
        options = ["--preserve"] * self.preserve + [f'--without "{",".join(self.without)}"'] * bool(self.without)
        options += [f"--device {self.device}"] * (self.device != "cpu")
        return " ".join(["python -m tests.fuzz.drive", f'--seed "{self.seed}" --number {number}', *options])


class Fault(NamedTuple):
    """What is shown: a verdict of FAULTS with its program."""

    number: int
    verdict: Verdict
    source: str


def work(pipe: Connection, task: Task) -> None:
    """In a worker: judge the next programs of a task; send each one's number and outcome, and the faults, shrunk."""
    torch.set_num_threads(1)
    if task.device == sham.NAME:
        sham.arrive()
    seen: Counter[tuple[object, ...]] = Counter()
    for number in range(task.first, task.end, task.step)[:LIFE]:
        source = task.source(number)
        verdict = task.judge(source, number)
        if verdict.outcome in FAULTS:
            seen[verdict.signature] += 1
            if seen[verdict.signature] <= ALIKE:
                short = shrunk(
                    source, lambda one, like=verdict.signature, number=number: task.judge(one, number).signature == like
                )
                pipe.send(Fault(number, verdict, short))
        pipe.send((number, verdict.outcome.value))  # last: whoever dies before is known by it
    pipe.send(None)


def events(tasks: list[Task]) -> Iterator[tuple[int, str] | Fault]:
    """What the workers of some tasks send. A worker that dies yields a crash and is replaced."""
    spawn = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[Task, int]] = {}

    def start(task: Task) -> None:
        ours, theirs = spawn.Pipe(duplex=False)
        spawn.Process(target=work, args=(theirs, task), daemon=True).start()
        theirs.close()
        running[ours] = (task, task.first - task.step)

    for task in tasks:
        start(task)
    while running:
        for pipe in wait(list(running)):
            task, last = running[pipe]
            try:
                event = pipe.recv()
            except EOFError:
                del running[pipe]
                guilty = last + task.step
                if guilty < task.end:
                    yield guilty, CRASH if runs_bare(runnable(task.source(guilty), task.device)) else CRASHES_BARE
                    start(task._replace(first=guilty + task.step))
                continue
            if event is None:
                del running[pipe]
                if last + task.step < task.end:
                    start(task._replace(first=last + task.step))
            else:
                if not isinstance(event, Fault):
                    running[pipe] = (task, event[0])
                yield event


def runs_bare(source: str) -> bool:
    """Whether the interpreter survives a program without noclobber."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(source)
        file.flush()
        return subprocess.run([sys.executable, file.name], capture_output=True, timeout=120).returncode in (0, 1)


def runnable(source: str, device: str) -> str:
    """A program as a script, to be run from the project's folder."""
    return f"from tests.device import sham\n\nsham.arrive()\n{source}" if device == sham.NAME else source


def say(text: str) -> None:
    """To the person at the terminal, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def drive(programs: int, jobs: int, like: Task) -> int:
    """Judge this many programs and print what came of it; returns the exit status, 1 if anything is wrong."""
    without = f", without {', '.join(like.without)}" if like.without else ""
    say(f"{programs} programs of seed {like.seed} on {like.device}, {jobs} at a time{without}")
    tasks = [like._replace(first=first, end=programs, step=jobs) for first in range(min(jobs, programs))]
    counts: Counter[str] = Counter()
    faulty: list[str] = []
    began = time.monotonic()
    with contextlib.closing(events(tasks)) as coming:
        for event in coming:
            if isinstance(event, Fault):
                say(shown(event.number, in_words(event.verdict), runnable(event.source, like.device)))
                continue
            number, outcome = event
            counts[outcome] += 1
            if outcome in _FAULTS:
                faulty.append(f"{outcome}: {like.command(number)}")
            if outcome == CRASH:
                say(shown(number, "the interpreter died", runnable(tasks[0].source(number), like.device)))
            if counts.total() % 10_000 == 0:
                say(f"{counts.total()} programs in {time.monotonic() - began:.0f} s")
    took = time.monotonic() - began
    say(f"\n{counts.total()} programs in {took:.0f} s, {counts.total() / took:.0f} per second")
    outcomes = dict.fromkeys([*(one.value for one in Outcome), CRASHES_BARE, CRASH])
    say("\n".join(f"{counts[outcome]:>8}  {outcome}" for outcome in outcomes))
    for fault in faulty[:MOST_NAMED]:  # the last lines, because of a long output often only the end is kept
        say(fault)
    return int(bool(faulty))


def in_words(verdict: Verdict) -> str:
    """A verdict as a line."""
    return f"{verdict.outcome.value} {', '.join(verdict.codes)} {verdict.why}"


def shown(number: int, what: str, source: str) -> str:
    """A script with its verdict as a comment."""
    heading = "".join(f"# {line}\n" for line in f"program {number}: {what}".splitlines())
    return f"\n{'-' * 100}\n{heading}{source}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", default="")
    parser.add_argument("--number", type=int, help="judge only this program of the seed, and print it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--without", default="", help=f"kinds of statements to leave out: {', '.join(KINDS)}")
    parser.add_argument("--preserve", action="store_true", help="judge `preserve` instead of `watch`")
    parser.add_argument(
        "--device", default="cpu", help=f"where the tensors are: cpu, {sham.NAME} (see tests/device), cuda"
    )
    parser.add_argument("--judge", type=Path, help="judge one script instead")
    parser.add_argument(
        "--large", action="store_true", help="judge it as if its tensors were large, as odd programs are"
    )
    options = parser.parse_args()
    if options.device == sham.NAME:
        sham.arrive()
    if options.judge:
        task = Task("", 0, 0, 1, (), options.preserve)
        verdict = task.judge(options.judge.read_text(), int(options.large))
        say(in_words(verdict))
        return int(verdict.outcome in FAULTS)
    without = tuple(kind for kind in options.without.split(",") if kind)
    if unknown := set(without) - set(KINDS):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}")
    if options.number is not None and not options.seed:
        parser.error("--number needs --seed")
    if options.device != "cpu":
        without = tuple(dict.fromkeys((*without, *ON_THE_CPU)))
    seed = options.seed or secrets.token_hex(4)
    task = Task(seed, 0, 0, 1, without, options.preserve, options.device)
    if options.number is not None:
        source = task.source(options.number)
        verdict = task.judge(source, options.number)
        say(shown(options.number, in_words(verdict), runnable(source, options.device)))
        return int(verdict.outcome in FAULTS)
    return drive(options.programs, options.jobs, task)


if __name__ == "__main__":
    sys.exit(main())
