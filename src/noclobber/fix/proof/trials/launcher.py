"""Starts trials, each in its own process, waits for them and ends them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, TypeVar

from noclobber.fix.proof.trials.job import ENTRY, ERRORS, ORDER, OUTPUT, PROCESSES, RESULTS, Ended, Order, Result
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Report, ReportError
from noclobber.processes.alive import is_known
from noclobber.processes.merging import report_of
from noclobber.render.text import place
from noclobber.settings.selection import Selection, selected

GRACE = 30.0
"""Seconds, beyond those of the order, for a program to come to the end of a backward call."""
FORKS = sys.platform == "linux"
"""Elsewhere a process that has imported what torch needs cannot be forked safely."""
TICK = 0.02
SETTLED = 1.0
"""Seconds that the other processes get to come to a finding that one of them has come to."""
WORK, DONE, TOLD = "work", "done", "told"
"""The files of a folder for work: what is to be called, what it returned or raised, and how far it is."""
Tell = Callable[[str], None]
_T = TypeVar("_T")


_SAME_IN_EACH_RUN = {
    "PYTHONHASHSEED": "0",
    "MALLOC_PERTURB_": "255",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
"""The second makes glibc give memory out as zeros: what `torch.empty` has not written is then the same in each run. But
small blocks of its cache it gives out as they are (glibc 2.43; tests/fix/test_launching.py), so there is no cache."""


@contextmanager
def launching(
    words: Sequence[str], environment: Mapping[str, str] | None = None, selection: Selection | None = None
) -> Iterator[Launcher]:
    """Give what runs one program again and again. At the end what still runs is ended, and the evidence is dropped."""
    environment = {**_SAME_IN_EACH_RUN, **os.environ, **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="noclobber-") as folder:
        server = _spawned(folder, words, environment, subprocess.PIPE) if FORKS else None
        launcher = Launcher(
            words, selection or Selection(), folder, environment, None if server is None else server.stdin, server
        )
        try:
            yield launcher
        finally:
            launcher.end()
            if server is not None:
                server.communicate()  # its stdin closes: it ends what it forked, and itself


def command(folder: str, words: Sequence[str]) -> list[str]:
    """Return the words that start `__main__.py` with the same interpreter and the same switches."""
    switches: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *switches, ENTRY, folder, *words]


class Launcher:
    """Runs a program again and again. `asked` is where the server reads which folders it is to fork a process for;
    without it each trial is a process that is spawned here. `server` is known only where it was started."""

    def __init__(
        self,
        words: Sequence[str],
        selection: Selection,
        folder: str,
        environment: Mapping[str, str],
        asked: IO[bytes] | None,
        server: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._words, self._selection, self._folder, self._environment = words, selection, folder, environment
        self._asked, self._server = asked, server
        self._trials: list[Trial] = []
        self.warm = asked is not None
        """Whether trials begin where torch has been imported, and not in an interpreter that has imported nothing."""
        self._process = ""
        """The role of the process that trials are about; empty for the first."""

    def start(self, order: Order, *, everywhere: bool = False) -> Trial:
        """Start a trial; its `result()` waits for it. `everywhere`: it is a search in all processes of the program,
        which `searched` waits for, and nothing else runs beside it."""
        if everywhere:
            self.end()
            self._process = ""
        elif self._process:
            for trial in self._trials:
                trial.result()  # processes that find each other by a port cannot run twice at a time
        fresh = order.fresh or not self.warm
        order = replace(order, selection=self._selection, fresh=fresh, process=self._process)
        return self._begun(ORDER, pickle.dumps(order), order.seconds + GRACE)

    def searched(self, trial: Trial, done: Collection[str] = ()) -> Result:
        """Return what a search found in the first process, or else in another one that is not `done`.

        The trials to come are about that process.
        """
        result = trial.searched(done, self._selection)
        self._process = result.process
        return result

    def run(self, order: Order) -> Result:
        """Start a trial and wait for it."""
        return self.start(order).result()

    def call(self, work: Callable[[Launcher, Tell], _T], tell: Tell, told: str) -> _T:
        """Return what `work` returns, or raise what it raises. It is called where torch has been imported, if there is
        a server: then this process need not import it. `told` is the first text for `tell`, which gets each text again
        every second until there is another."""
        tell(told)
        if self._asked is None:
            return work(self, tell)
        running, since = self._begun(WORK, pickle.dumps((work, self._selection)), float("inf")), time.monotonic()
        with open(running.file(TOLD), "a+", encoding="utf-8") as lines:
            lines.seek(0)
            over = False
            while not over:
                over = running.status() is not None  # before the last lines are read
                while line := lines.readline().rstrip("\n"):
                    told, since = line, time.monotonic()
                    tell(told)
                if not over and time.monotonic() - since >= 1:
                    since = time.monotonic()
                    tell(told)
                time.sleep(0 if over else TICK)
        if not os.path.exists(running.file(DONE)):
            raise RuntimeError(running.last_words())
        with open(running.file(DONE), "rb") as file:
            done = pickle.load(file)
        if isinstance(done, Exception):
            raise done
        result: _T = done
        return result

    def end(self) -> None:
        """End what was started here."""
        for trial in self._trials:
            trial.end()

    def _begun(self, name: str, text: bytes, seconds: float) -> Trial:
        """Start a process that finds a text in a file of its folder."""
        folder = os.path.join(self._folder, str(len(self._trials)))
        os.mkdir(folder)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(text)
        process = None
        if self._asked is None:
            process = _spawned(folder, self._words, self._environment, subprocess.DEVNULL)
        else:
            self._asked.write(os.fsencode(folder) + b"\n")
            self._asked.flush()
        trial = Trial(folder, seconds, process, self._server, self._process)
        self._trials.append(trial)
        return trial


def _spawned(folder: str, words: Sequence[str], environment: Mapping[str, str], stdin: int) -> subprocess.Popen[bytes]:
    """Start a process that writes into a folder: in its own process group, so that what it starts ends with it."""
    with open(os.path.join(folder, OUTPUT), "wb") as output, open(os.path.join(folder, ERRORS), "wb") as errors:
        return subprocess.Popen(
            command(folder, words), stdin=stdin, stdout=output, stderr=errors, env=environment, start_new_session=True
        )


class Trial:
    """A trial under way: in a `process` that was spawned for it, or else in one that the server forked. `role`: of the
    process of the program that it is about."""

    def __init__(
        self,
        folder: str,
        seconds: float,
        process: subprocess.Popen[bytes] | None,
        server: subprocess.Popen[bytes] | None,
        role: str = "",
    ) -> None:
        self._folder, self._seconds, self._process, self._server = folder, seconds, process, server
        self._role = role
        self._until = time.monotonic() + seconds
        self._result: Result | None = None

    def result(self) -> Result:
        """Wait for the result of the process that the trial is about, and return it."""
        if self._result is None:
            status = self._wait(lambda: self._role != "" and self._role in self._children())
            found = self._children().get(self._role) if self._role else self._read("result")
            self._result = self._about(self._role, found, status)
        return self._result

    def searched(self, done: Collection[str], selection: Selection) -> Result:
        """Wait until one of the processes has found enough, and return the result of the first that found something
        and is not `done`; or else of the first process."""
        found: list[float] = []

        def settled() -> bool:
            ended = [one for one in self._children().values() if one.ended is not Ended.DIED]
            if any(one.findings or one.ended is Ended.LIMIT for one in ended):
                found.append(time.monotonic())
            return bool(found) and found[-1] - found[0] > SETTLED

        status = self._wait(settled)
        first = self._read("result")
        results = ({} if first is None else {"": first}) | self._children()
        role = next((role for role, one in results.items() if one.findings and role not in done), "")
        result = self._result = self._about(role, results.get(role) or next(iter(results.values()), None), status)
        with suppress(OSError, ReportError):
            self._look_elsewhere(result, {*done, role}, selection)
        return result

    def _about(self, role: str, result: Result | None, status: int | None) -> Result:
        """Return the result of a process, or else why there is none."""
        if result is None and status is None:
            result = Result(Ended.TIMEOUT, error=f"no backward call ended within {self._seconds:.0f} s")
        elif result is None:
            result = Result(Ended.DIED, error=self.last_words())
        result.process = role
        result.printed = "" if role else self._text(OUTPUT) or ""  # all processes print into one file
        return result

    def _look_elsewhere(self, result: Result, done: Collection[str], selection: Selection) -> None:
        """Note what only other processes found than these, and which of all were not watched."""
        report = selected(report_of(self.file(PROCESSES)), selection, must_exist=False)
        of_these = {one.id for role, one in _by_role(report) if role in done}
        known = {one.identity() for one in result.findings}
        others = [
            one
            for one in report.findings
            if one.severity != "hint" and one.identity() not in known and not of_these.intersection(one.processes)
        ]
        result.elsewhere = next((f"{one.code} at {place(one.primary.span)}" for one in others if one.primary), "")
        result.checked = report.coverage.backwards
        result.unwatched = tuple(f"`{one.typed()}`" for one in report.processes if one.why)

    def _wait(self, is_enough: Callable[[], bool]) -> int | None:
        """Wait for the end of the first process, and end all; return its status, None if it had not ended."""
        while (status := self.status()) is None and time.monotonic() < self._until and not is_enough():
            time.sleep(TICK)
        self.end()
        return status

    def _children(self) -> dict[str, Result]:
        """Return what became of the children that have ended, by role, in the order in which they were started."""
        try:
            there = {name.removesuffix(".json") for name in os.listdir(self.file(RESULTS)) if name.endswith(".json")}
            roles = [(role, one.id) for role, one in _by_role(report_of(self.file(PROCESSES)))] if there else []
        except (OSError, ReportError):
            return {}
        found = ((role, self._read(os.path.join(RESULTS, name))) for role, name in roles if name in there)
        return {role: one for role, one in found if one is not None}

    def _read(self, name: str) -> Result | None:
        """Return what a process has written; None if it has written nothing."""
        text = self._text(f"{name}.json")
        if text is None:
            return None
        result = Result.from_json(text)
        result.evidence = path if os.path.exists(path := self.file(f"{name}.pt")) else ""
        return result

    def file(self, name: str) -> str:
        """Return the path of a file in its folder."""
        return os.path.join(self._folder, name)

    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self._process is not None:
            return self._process.poll()
        if (text := self._text("status")) is not None:
            return int(text)
        return self._server.poll() if self._server is not None else None

    def end(self) -> None:
        """End it and all that it started, wherever it is."""
        if sys.platform == "win32":
            if self._process is not None:
                self._process.kill()
        elif group := self._process.pid if self._process is not None else int(self._text("pid") or 0):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        end_started(self._folder)

    def last_words(self) -> str:
        """Return in words how it ended, where it left no result."""
        status = self.status() or 0
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        lines = [line for name in (OUTPUT, ERRORS) for line in (self._text(name) or "").strip().splitlines()]
        return f"it ended with status {status}" + (f": {lines[-1]}" if lines else "")

    def _text(self, name: str) -> str | None:
        """Return what a file in its folder holds; None if nothing has been written there."""
        try:
            with open(self.file(name), "rb") as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return None


def end_started(folder: str) -> None:
    """End what a trial has started in a session of its own, as torchrun does its ranks. `folder`: of the trial."""
    with suppress(OSError, ReportError):
        for one in report_of(os.path.join(folder, PROCESSES)).processes:
            if one.state == "running" and not one.why and is_known(one.host):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, signal.SIGKILL)


def _by_role(report: Report) -> Iterator[tuple[str, Process]]:
    """Yield the processes of a run with their roles, which are the same in each run: empty for the first, and numbered
    where several have one role."""
    seen: Counter[str] = Counter()
    for one in report.processes:
        role = one.role() if one.parent is not None else ""
        seen[role] += 1
        yield (role if seen[role] == 1 else f"{role} ({seen[role]})"), one
