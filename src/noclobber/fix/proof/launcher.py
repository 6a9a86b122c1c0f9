"""Starts trials, each in its own process, waits for them and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO

from noclobber.fix.proof.job import ERRORS, OUTPUT, Ended, Order, Result
from noclobber.selection import Selection

GRACE = 30.0
"""Seconds, beyond those of the order, for a program to come to the end of a backward call."""
FORKS = sys.platform == "linux"
"""Elsewhere a process that has imported what torch needs cannot be forked safely."""
TICK = 0.02
_ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")


class Launcher:
    """Runs one program again and again. Use as a context: leaving it ends what still runs and drops the evidence."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        selection: Selection | None = None,
    ) -> None:
        self._words = list(words)
        self._selection = selection or Selection()
        self._environment = environment or {}
        self._folder = tempfile.TemporaryDirectory(prefix="noclobber-")
        self._server: subprocess.Popen[bytes] | None = None
        self._trials: list[Trial] = []

    def __enter__(self) -> Launcher:
        if FORKS:
            with open(os.path.join(self._folder.name, "serving"), "wb") as output:
                self._server = self._process("serve", subprocess.PIPE, output, output)
        return self

    def __exit__(self, *exception: object) -> None:
        for trial in self._trials:
            trial.end()
        if self._server is not None:
            self._server.communicate()  # its stdin closes: it ends what it forked, and itself
        self._folder.cleanup()

    def start(self, order: Order, *, fresh: bool = False) -> Trial:
        """Start a trial; its `result()` waits for it. `fresh`: in an interpreter that has imported nothing yet."""
        folder = os.path.join(self._folder.name, str(len(self._trials)))
        os.mkdir(folder)
        with open(os.path.join(folder, "order.json"), "w", encoding="utf-8") as file:
            file.write(replace(order, selection=self._selection).to_json())
        if self._server is None or self._server.stdin is None or fresh:
            with open(os.path.join(folder, OUTPUT), "wb") as output, open(os.path.join(folder, ERRORS), "wb") as errors:
                process = self._process(folder, subprocess.DEVNULL, output, errors)
        else:
            process = self._server
            self._server.stdin.write(os.fsencode(folder) + b"\n")
            self._server.stdin.flush()
        trial = Trial(process, folder, order.seconds + GRACE, own=process is not self._server)
        self._trials.append(trial)
        return trial

    def prepare(self, module: str) -> None:
        """Have a module of torch imported before the trials to come, which will all need it."""
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.write(module.encode() + b"\n")
            self._server.stdin.flush()

    def run(self, order: Order, *, fresh: bool = False) -> Result:
        """Start a trial and wait for it."""
        return self.start(order, fresh=fresh).result()

    def _process(self, what: str, stdin: int, output: BinaryIO, errors: BinaryIO) -> subprocess.Popen[bytes]:
        # The same interpreter with the same switches; a process group of its own, so that what it starts ends with it.
        switches: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [sys.executable, *switches, _ENTRY, what, *self._words],
            stdin=stdin,
            stdout=output,
            stderr=errors,
            env={"PYTHONHASHSEED": "0", **os.environ, **self._environment},
            start_new_session=True,
        )


class Trial:
    """A trial under way, in a process of its `own` or in one that the server forked."""

    def __init__(self, process: subprocess.Popen[bytes], folder: str, seconds: float, *, own: bool) -> None:
        self._process = process
        self._folder = folder
        self._seconds = seconds
        self._own = own
        self._until = time.monotonic() + seconds

    def result(self) -> Result:
        """Wait for the end and return the result."""
        while (status := self._status()) is None:
            if time.monotonic() > self._until:
                self.end()
                return Result(Ended.TIMEOUT, error=f"no backward call ended within {self._seconds:.0f} s")
            time.sleep(TICK)
        self.end()
        path = os.path.join(self._folder, "result.json")
        if not os.path.exists(path):
            return Result(Ended.DIED, error=self._last_words(status))
        with open(path, encoding="utf-8") as file:
            result = Result.from_json(file.read())
        evidence = os.path.join(self._folder, "evidence.pt")
        result.evidence = evidence if os.path.exists(evidence) else ""
        result.printed = self._printed(OUTPUT)
        return result

    def _status(self) -> int | None:
        """The exit status, None while it runs."""
        if self._own:
            return self._process.poll()
        try:
            with open(os.path.join(self._folder, "status"), encoding="utf-8") as file:
                return int(file.read())
        except FileNotFoundError:
            return self._process.poll()

    def end(self) -> None:
        """End it and all that it started, wherever it is."""
        process = self._process.pid if self._own else self._forked()
        if process:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
        if self._own:
            self._process.wait()

    def _forked(self) -> int:
        try:
            with open(os.path.join(self._folder, "pid"), encoding="utf-8") as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return 0

    def _last_words(self, status: int) -> str:
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        lines = [line for name in (OUTPUT, ERRORS) for line in self._printed(name).strip().splitlines()]
        return f"it ended with status {status}" + (f": {lines[-1]}" if lines else "")

    def _printed(self, name: str) -> str:
        with open(os.path.join(self._folder, name), "rb") as file:
            return file.read().decode(errors="replace")
