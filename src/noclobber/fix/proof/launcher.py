"""Starts trials, each in its own process, waits for them and ends them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, TypeVar

from noclobber.fix.proof.job import ERRORS, OUTPUT, Ended, Order, Result
from noclobber.selection import Selection

GRACE = 30.0
"""Seconds, beyond those of the order, for a program to come to the end of a backward call."""
FORKS = sys.platform == "linux"
"""Elsewhere a process that has imported what torch needs cannot be forked safely."""
TICK = 0.02
WORK, DONE, TOLD = "work", "done", "told"
"""The files of a folder for work: what is to be called, what it returned or raised, and how far it is."""
_ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")
Tell = Callable[[str], None]
_T = TypeVar("_T")


@contextmanager
def launching(
    words: Sequence[str], environment: Mapping[str, str] | None = None, selection: Selection | None = None
) -> Iterator[Launcher]:
    """Give what runs one program again and again. At the end what still runs is ended, and the evidence is dropped."""
    environment = {"PYTHONHASHSEED": "0", **os.environ, **(environment or {})}
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
    return [sys.executable, *switches, _ENTRY, folder, *words]


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

    def start(self, order: Order) -> Trial:
        """Start a trial; its `result()` waits for it."""
        order = replace(order, selection=self._selection, fresh=order.fresh or not self.warm)
        return self._begun("order.json", order.to_json().encode(), order.seconds + GRACE)

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
        with open(running.file(TOLD), "w+", encoding="utf-8") as lines:
            while running.status() is None:
                line, now = lines.readline().rstrip("\n"), time.monotonic()
                if line or now - since >= 1:
                    told, since = line or told, now
                    tell(told)
                time.sleep(TICK)
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
        trial = Trial(folder, seconds, process, self._server)
        self._trials.append(trial)
        return trial


def _spawned(folder: str, words: Sequence[str], environment: Mapping[str, str], stdin: int) -> subprocess.Popen[bytes]:
    """Start a process that writes into a folder: in its own process group, so that what it starts ends with it."""
    with open(os.path.join(folder, OUTPUT), "wb") as output, open(os.path.join(folder, ERRORS), "wb") as errors:
        return subprocess.Popen(
            command(folder, words), stdin=stdin, stdout=output, stderr=errors, env=environment, start_new_session=True
        )


class Trial:
    """A trial under way: in a `process` that was spawned for it, or else in one that the server forked."""

    def __init__(
        self,
        folder: str,
        seconds: float,
        process: subprocess.Popen[bytes] | None,
        server: subprocess.Popen[bytes] | None,
    ) -> None:
        self._folder, self._seconds, self._process, self._server = folder, seconds, process, server
        self._until = time.monotonic() + seconds

    def result(self) -> Result:
        """Wait for the end and return the result."""
        while self.status() is None:
            if time.monotonic() > self._until:
                self.end()
                return Result(Ended.TIMEOUT, error=f"no backward call ended within {self._seconds:.0f} s")
            time.sleep(TICK)
        self.end()
        if not os.path.exists(self.file("result.json")):
            return Result(Ended.DIED, error=self.last_words())
        with open(self.file("result.json"), encoding="utf-8") as file:
            result = Result.from_json(file.read())
        evidence = self.file("evidence.pt")
        result.evidence = evidence if os.path.exists(evidence) else ""
        result.printed = self._printed(OUTPUT)
        return result

    def file(self, name: str) -> str:
        """Return the path of a file in its folder."""
        return os.path.join(self._folder, name)

    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self._process is not None:
            return self._process.poll()
        try:
            with open(self.file("status"), encoding="utf-8") as file:
                return int(file.read())
        except FileNotFoundError:
            return self._server.poll() if self._server is not None else None

    def end(self) -> None:
        """End it and all that it started, wherever it is."""
        if sys.platform == "win32":
            if self._process is not None:
                self._process.kill()
        elif group := self._process.pid if self._process is not None else self._forked():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def last_words(self) -> str:
        """Return in words how it ended, where it left no result."""
        status = self.status() or 0
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        lines = [line for name in (OUTPUT, ERRORS) for line in self._printed(name).strip().splitlines()]
        return f"it ended with status {status}" + (f": {lines[-1]}" if lines else "")

    def _forked(self) -> int:
        try:
            with open(self.file("pid"), encoding="utf-8") as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return 0

    def _printed(self, name: str) -> str:
        if not os.path.exists(self.file(name)):  # ended before it began
            return ""
        with open(self.file(name), "rb") as file:
            return file.read().decode(errors="replace")
