"""One run of a program under a session: from before its first line to after its last, then the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from noclobber import program
from noclobber.model.report import Report, ReportError
from noclobber.processes.member import Member, Order, is_pytorch
from noclobber.processes.merging import report_of
from noclobber.session import Session


class Run:
    """A program's run. What the program may change and the report needs is kept from before its first line.

    Order at the end: traceback, threads, exit functions, flushed streams, report. Only objects that live until the
    interpreter ends come after the report. `status` is the program's own exit status, `crashes` the errors
    inside noclobber. `folder` keeps the files of its processes, for good; else they lie in a temporary one.
    """

    def __init__(self, on_write: Literal["record", "raise"], contents: bool, folder: str | None = None) -> None:
        self.stderr = sys.stderr
        self.status = 0
        self._kept = folder is not None
        self._files = folder or tempfile.mkdtemp(prefix="noclobber-")
        self._process = os.getpid()
        self._folder = os.getcwd()
        self._modules = list(sys.path) if sys.flags.safe_path else sys.path[1:]
        self._argv: list[str] = []
        self._member = Member(Order(self._files, contents, on_write), Session(on_write=on_write, contents=contents))
        self._interrupt: BaseException | None = None

    @property
    def crashes(self) -> list[Exception]:
        """The errors inside noclobber."""
        return self._member.crashes

    def carry_out(self, words: Sequence[str]) -> None:
        """Run the program that `python WORDS...` would run, to its very end. Raises NotAProgram where there is none."""
        try:
            loaded = program.load(words)
            self._argv = list(loaded.argv)
            with self.kept_apart():
                self._member.begin()
            error = program.execute(loaded)
        except program.NotAProgram:
            self.close()
            raise
        if error is not None:
            self._member.escaped(error)
        self.status = program.show(error)
        self._interrupt = error if type(error) is KeyboardInterrupt else None
        del error  # and with it the frames, and their tensors, that `python` would no longer hold
        program.wind_down()
        self._member.end(self.status & 0xFF)

    @property
    def in_child(self) -> bool:
        """Return True in a child that the program forked; the first process reports for all."""
        return os.getpid() != self._process

    def kept_apart(self) -> AbstractContextManager[None]:
        """Keep a crash inside noclobber for the end, so that it does not change what the program does."""
        return self._member.kept_apart()

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Restore folder and module path of the start, so that paths are relative to it and our own `rich` is found."""
        sys.path[:] = self._modules
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # the folder may be gone
                stack.enter_context(contextlib.chdir(self._folder))
            yield

    def report(self) -> Report:
        """Stop watching, and say what was found in all processes."""
        session, processes = self._member.session, Report()
        with contextlib.suppress(OSError, ReportError):
            processes = report_of(self._files)
        torch = sys.modules.get("torch") if self._member.watched else None
        about: dict[str, Any] = {
            "argv": self._argv,
            "status": self.status & 0xFF,
            "torch": str(torch.__version__) if torch is not None else processes.program.get("torch"),
            "python": "{}.{}.{}".format(*sys.version_info),
        }
        session.stop()
        if sum(one.counts for one in processes.processes) < 2:
            return replace(session.report(about), processes=processes.processes)
        # What could not be written, as the folder is full, is known of this process at least.
        written = {finding.identity() for finding in processes.findings}
        own = tuple(finding for finding in session.findings if finding.identity() not in written)
        return replace(processes, findings=session.advised(processes.findings + own), program=about)

    def close(self) -> None:
        """Remove the files of the processes, if nobody asked for them."""
        if not self._kept:
            shutil.rmtree(self._files, ignore_errors=True)

    def nothing_to_watch(self, report: Report) -> str:
        """Return why nothing was watched; empty if something was, or if a child was not."""
        if self._member.watched or sum(one.counts for one in report.processes) > bool(self._member.unsupported):
            return ""
        if self._member.unsupported:
            return f"nothing was watched: {self._member.unsupported}"
        if "torch" not in sys.modules:
            return "nothing to watch: torch was never imported"
        if not is_pytorch():
            return f"nothing to watch: `torch` is {getattr(sys.modules['torch'], '__file__', None)}, not PyTorch"
        return "nothing was watched"

    def leave(self) -> None:
        """Raise KeyboardInterrupt where one ended the program, its traceback having been shown.

        The interpreter dies of SIGINT when that leaves it, so that a shell sees what happened.
        """
        if self._interrupt is not None:
            sys.excepthook = lambda *_: None
            raise self._interrupt
