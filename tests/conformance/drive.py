"""PyTorch's own databases of operators, modules and optimizers, bare and under each mode: nothing may differ.

python -m tests.conformance.drive [--part 0.1 --seed today] [--samples 4] [--seconds 30] [--jobs 2]
python -m tests.conformance.drive --only "operator nn.functional.relu" [--program "in place, sample 3"]
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import multiprocessing
import random
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import date
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from noclobber.observe.torch_api.autograd import hook_stack

LIFE = 150
"""Entries that a worker runs before another takes over."""
PATIENCE = 10
"""How many times the seconds of an entry may pass without a word before its worker is taken to hang."""
SHOWN = 6
"""Differences of one entry that are shown, and not only counted."""


class Task(NamedTuple):
    """The names of entries that are left, and how much of each."""

    names: tuple[str, ...]
    seed: str
    samples: int
    seconds: float
    program: str
    bare: bool = False


class Done(NamedTuple):
    """What became of an entry."""

    name: str
    samples: int = 0
    programs: int = 0
    compared: int = 0
    unsettled: int = 0
    left_out: int = 0
    """Samples that were not run, for want of time or as they were not asked for."""
    seconds: float = 0
    differences: tuple[tuple[str, str, str, str], ...] = ()


def entries() -> dict[str, object]:
    """All entries of the three databases, by name."""
    from tests.conformance import modules, operators, optimizers

    return {**operators.entries(), **modules.entries(), **optimizers.entries()}


def work(pipe: Connection, task: Task) -> None:
    """In a worker: run entries one by one and send what became of each; None at the end."""
    torch.set_num_threads(1)
    torch.set_warn_always(True)  # else a warning that comes once in a process comes bare and in no mode
    warnings.simplefilter("ignore")  # outside of the programs
    known = entries()
    hooks = RemovableHandle.next_id - hook_stack._own_hooks
    for name in task.names[:LIFE]:
        RemovableHandle.next_id = hooks + hook_stack._own_hooks  # what one entry has registered is of no other
        try:
            pipe.send(run_entry(name, known[name], task))
        except Exception:
            pipe.send(Done(name, differences=(("", "", "the drive failed", traceback.format_exc()),)))
    pipe.send(None)


def run_entry(name: str, programs: object, task: Task) -> Done:
    """Run the programs of one entry, samples in an order drawn by the seed, until its time is over."""
    from tests.conformance.judge import judge, settled_run

    began = time.monotonic()
    samples = programs()  # type: ignore[operator]
    first, *others = samples or [[]]
    random.Random(f"{task.seed} {name}").shuffle(others)
    chosen = [first, *others][: task.samples or None]
    done = Done(name)
    for sample in chosen:
        if time.monotonic() - began > task.seconds:
            break
        for program in sample:
            if task.program and program.name != task.program:
                continue
            if task.bare:
                settled_run(program)
                continue
            verdict = judge(program)
            done = done._replace(
                programs=done.programs + 1,
                compared=done.compared + verdict.compared,
                unsettled=done.unsettled + verdict.unsettled,
                differences=done.differences + tuple(verdict.differences),
            )
        done = done._replace(samples=done.samples + 1)
    return done._replace(left_out=len(samples) - done.samples, seconds=time.monotonic() - began)


def events(tasks: list[Task]) -> Iterator[Done]:
    """What the workers of some tasks send. A worker that dies or hangs yields a difference and is replaced."""
    spawn = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[Task, multiprocessing.process.BaseProcess, float]] = {}

    def start(task: Task) -> None:
        ours, theirs = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=work, args=(theirs, task), daemon=True)
        worker.start()
        theirs.close()
        running[ours] = (task, worker, time.monotonic())

    for task in tasks:
        start(task)
    while running:
        ready = wait(list(running), timeout=5)
        for pipe, (task, worker, since) in list(running.items()):
            hangs = pipe not in ready and time.monotonic() - since > 60 + PATIENCE * task.seconds
            if hangs:
                worker.kill()
            elif pipe not in ready:
                continue
            done = None
            try:
                done = None if hangs else pipe.recv()
                died = hangs
            except EOFError:
                died = True
            if isinstance(done, Done):
                running[pipe] = (task._replace(names=task.names[1:]), worker, time.monotonic())
                yield done
                continue
            del running[pipe]
            if died and task.names:
                what = "hang" if hangs else "crash"
                if task.bare or survives_bare(task):
                    yield Done(task.names[0], differences=(("", "", what, "the interpreter is gone"),))
                else:
                    say(f"{task.names[0]}: not judged, {what} under bare PyTorch")
                    yield Done(task.names[0])
                task = task._replace(names=task.names[1:])
            if task.names:
                start(task)


def survives_bare(task: Task) -> bool:
    """Whether the interpreter gets through the entry whose turn it is without noclobber."""
    command = [sys.executable, "-m", "tests.conformance.drive", "--bare", "--only", task.names[0], "--jobs", "1"]
    command += ["--seed", task.seed, "--samples", str(task.samples), "--seconds", str(task.seconds)]
    return subprocess.run(command, capture_output=True).returncode == 0


def say(text: str) -> None:
    """To the person at the terminal, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def drive(tasks: list[Task]) -> int:
    """Run the entries of all tasks and print what differs; the exit status is 1 if anything does."""
    total, kinds, number = Done(""), Counter[str](), 0
    began = time.monotonic()
    with contextlib.closing(events(tasks)) as coming:
        for number, done in enumerate(coming, 1):
            total = Done("", *(one + other for one, other in zip(total[1:7], done[1:7], strict=True)))
            kinds.update(kind for _, _, kind, _ in done.differences)
            if done.differences:
                say(shown(done))
            if number % 50 == 0:
                say(f"{number} entries in {time.monotonic() - began:.0f} s")
    took = f"{number} entries in {time.monotonic() - began:.0f} s"
    say(f"\n{took}: {total.samples} samples, {total.programs} programs in 5 modes, {total.compared} values compared")
    say(f"not compared: {total.unsettled} values that bare PyTorch does not give twice")
    say(f"left out: {total.left_out} samples")
    say("\n".join(f"{count:>8}  {kind}" for kind, count in kinds.most_common()) or "no difference")
    return int(bool(kinds))


def shown(done: Done) -> str:
    """The differences of an entry, those that are alike once, and how to see them again."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for program, mode, kind, what in done.differences:
        alike.setdefault((kind, re.sub(r"0x[0-9a-f]+", "0x", what)), []).append((program, mode))
    lines = [f"\n{done.name}: {len(done.differences)} differences"]
    for (kind, what), where in list(alike.items())[:SHOWN]:
        modes = ", ".join(dict.fromkeys(mode for _, mode in where))
        lines.append(
            f"  {kind}: {what}\n    {modes} [{where[0][0]}]" + f" and {len(where) - 1} more" * (len(where) > 1)
        )
    return "\n".join([*lines, f'  again: make conformance ONLY="{done.name}"'])


def chosen(names: list[str], only: str, part: float, seed: str) -> list[str]:
    """The entries to run: those that match, or a part of all, drawn by a seed."""
    if only:
        return [name for name in names if name == only or fnmatch.fnmatch(name, only)]
    return random.Random(seed).sample(names, round(part * len(names)))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the name of an entry, or a pattern of names")
    parser.add_argument("--program", default="", help='one program of it: "in place, sample 3"')
    parser.add_argument("--part", type=float, default=1.0, help="how much of the databases")
    parser.add_argument("--seed", default="today", help="draws the part, and the order of samples; today is the date")
    parser.add_argument("--samples", type=int, default=0, help="the most of an entry; 0 for all")
    parser.add_argument("--seconds", type=float, default=30, help="the most for an entry")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bare", action="store_true", help="only bare PyTorch: does it survive?")
    options = parser.parse_args()
    seed = date.today().isoformat() if options.seed == "today" else options.seed
    names = chosen(sorted(entries()), options.only, options.part, seed)
    if not names:
        parser.error(f"no entry is called {options.only}")
    say(f"{len(names)} entries on torch {torch.__version__}: --part {options.part} --seed {seed}")
    jobs = min(options.jobs, len(names))
    tasks = [
        Task(tuple(names[n::jobs]), seed, options.samples, options.seconds, options.program, options.bare)
        for n in range(jobs)
    ]
    return drive(tasks)


if __name__ == "__main__":
    sys.exit(main())
