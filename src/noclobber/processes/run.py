"""One run of a program under a session: from before its first line to after its last, then the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from noclobber.model.fake import Enough
from noclobber.model.reports.report import Report, ReportError
from noclobber.model.version import version
from noclobber.processes.leftover import new_folder, runs
from noclobber.processes.member import Member, Order, is_pytorch, kept_apart
from noclobber.processes.merging import report_of, with_own
from noclobber.session import program
from noclobber.session.session import Session

STARTING = 2.0
"""Seconds that a child gets to write its first line, if it was started just before the end."""


def _batch(iterates: bool) -> object:
    from noclobber.observe.fake.run import active

    run = active()
    return run.given(iterates) if run is not None else None


class Run:
    """A program's run. What the program may change and the report needs is kept from before its first line.

    Order at the end: traceback, threads, exit functions, flushed streams, report. Only objects that live until the
    interpreter ends come after the report. `status` is the program's own exit status, `crashes` the errors
    inside noclobber. `folder` keeps the files of its processes, for good; else they lie in one that is removed at the
    end, and stays if the program is killed.
    """

    def __init__(self, session: Session, folder: str | None = None) -> None:
        self.stderr = sys.stderr
        self.status = 0
        self.showed_error = False
        """Whether the last thing on stderr is the traceback of an error that ended the program."""
        self.crashes: list[Exception] = []
        self.kept_apart = partial(kept_apart, self.crashes)
        self._keeps_files = folder is not None
        self.runs = runs()
        """The user's folder for runs. The program may change the environment that says where it is."""
        self._session = session
        self._member = Member(Order(folder or new_folder(self.runs), session.handed_on()), session, self.crashes)
        self._process = os.getpid()
        self._folder = os.getcwd()
        self._modules = list(sys.path) if sys.flags.safe_path else sys.path[1:]
        self._argv: list[str] = []
        self._began = time.monotonic()
        self.cost = ""
        """What noclobber's own Python has cost, in words; empty if it was little."""
        self._date = datetime.now().astimezone().isoformat(timespec="seconds")
        self._interrupt: BaseException | None = None

    def carry_out(self, words: Sequence[str], report: Callable[[], int]) -> None:
        """Run the program that `python WORDS...` would run, to its very end. Raises NotAProgram where there is none.

        `report` is called if the program leaves before that end: by `os._exit`, or as another program (`os.execv`).
        """
        self._member.at_exit = partial(self._left, report)
        try:
            loaded = program.load(words)
            self._argv = list(loaded.argv)
            with self.kept_apart():
                self._member.begin()
            faked = self._session.fake
            giver = faked.giver if faked is not None else ""
            with program.giving(loaded, giver, _batch) if giver else contextlib.nullcontext(loaded) as whole:
                error = program.execute(whole)
        except program.NotAProgram:
            self.close()
            raise
        if isinstance(error, Enough):
            error = None
        if error is not None:
            self._member.escaped(error)
        self.status = program.show(error)
        self.showed_error = error is not None and not isinstance(error, SystemExit)
        self._interrupt = error if program.is_interrupt(error) else None
        del error  # and with it the frames, and their tensors, that `python` would no longer hold
        with self.kept_apart():
            self.cost = self._measured()
        program.wind_down()
        self._member.end(self.status & 0xFF)

    def _left(self, report: Callable[[], int], status: int) -> int:
        self.status = status
        return report()

    @property
    def in_child(self) -> bool:
        """Return True in a child that the program forked; the first process reports for all."""
        return os.getpid() != self._process

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
        member, files = self._member, Report()
        with contextlib.suppress(OSError, ReportError):
            files = report_of(member.order.folder, run=member.order.run)
            until = time.monotonic() + STARTING
            while time.monotonic() < until and any(one.why and one.state == "running" for one in files.processes):
                time.sleep(0.05)
                files = report_of(member.order.folder, run=member.order.run)
        torch = sys.modules.get("torch") if member.watched else None
        about = {
            "argv": self._argv,
            "status": self.status & 0xFF,
            "torch": str(torch.__version__) if torch is not None else files.program.get("torch"),
            "python": "{}.{}.{}".format(*sys.version_info),
            "noclobber": version(),
            "date": self._date,
        }
        self._session.stop()
        return with_own(files, self._session, about)

    def _measured(self) -> str:
        """Say how long noclobber's Python took, and what the native part would leave of that; empty if it was little.

        The ledger and hints leave all to Python anyway.
        """
        session = self._session
        if not session.started or session.account or session.allocations or session.every or session.fake:
            return ""
        from noclobber.observe.arming import own_cost

        return own_cost.in_words(time.monotonic() - self._began)

    def files(self) -> list[str]:
        """Return the program's own files: the script, and the modules that it has imported."""
        # By the folder in which the run began: the program may have left it, and may have removed where it is.
        return program.own_files(os.path.join(self._folder, self._argv[0]) if self._argv else "")

    @property
    def unwritten(self) -> str:
        """Return why this process could not write all that it found into the folder; empty if it could."""
        return self._member.journal.failed

    def close(self) -> None:
        """Remove the files of the processes, if nobody asked for them."""
        if not self._keeps_files:
            shutil.rmtree(self._member.order.folder, ignore_errors=True)

    def nothing_to_watch(self, report: Report) -> str:
        """Return why nothing was watched; empty if something was, or if a child was not."""
        counted, torch = [one for one in report.processes if one.counts], sys.modules.get("torch")
        if self._member.watched or any(one.watched for one in counted) or len(counted) > 1:
            return ""
        if self._member.unsupported:
            return f"nothing was watched: {self._member.unsupported}"
        if torch is None and self._interrupt is not None and _is_of_torch(self._interrupt):
            return "nothing was watched: the program was interrupted while it imported torch"
        if torch is None and not counted:
            return "nothing to watch: torch was never imported"
        if torch is not None and not is_pytorch():
            if getattr(torch.__spec__, "_initializing", False):  # by a daemon thread
                return "nothing was watched: the program ended while it imported torch"
            return f"nothing to watch: `torch` is {getattr(torch, '__file__', None)}, not PyTorch"
        return "" if counted else "nothing was watched"

    def leave(self) -> None:
        """Raise KeyboardInterrupt where one ended the program, its traceback having been shown.

        The interpreter dies of SIGINT when that leaves it, so that a shell sees what happened.
        """
        if self._interrupt is not None:
            sys.excepthook = lambda *_: None
            raise self._interrupt


def _is_of_torch(error: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__")).partition(".")[0] == "torch" for frame in frames)
