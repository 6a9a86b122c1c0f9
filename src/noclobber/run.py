"""One run of a program under a session: from before its first line to after its last, then the report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from noclobber import program
from noclobber.imports import after_import
from noclobber.model.error import UnsupportedTorch
from noclobber.model.report import Report

if TYPE_CHECKING:
    from noclobber.session import Session


class Run:
    """A program's run. What the program may change and the report needs is kept from before its first line.

    Order at the end: traceback, threads, exit functions, flushed streams, report. Only objects that live until the
    interpreter ends come after the report. `status` is the program's own exit status, `crashes` the errors
    inside noclobber.
    """

    def __init__(self, on_write: Literal["record", "raise"], contents: bool) -> None:
        self.on_write = on_write
        self.contents = contents
        self.stderr = sys.stderr
        self.status = 0
        self.crashes: list[Exception] = []
        self._process = os.getpid()
        self._folder = os.getcwd()
        self._modules = list(sys.path) if sys.flags.safe_path else sys.path[1:]
        self._argv: list[str] = []
        self._session: Session | None = None
        self._watched = False
        self._unsupported = ""
        """Why this release of torch can't be watched."""
        self._interrupt: BaseException | None = None

    def carry_out(self, words: Sequence[str]) -> None:
        """Run the program that `python WORDS...` would run, to its very end. Raises NotAProgram where there is none."""
        loaded = program.load(words)
        self._argv = list(loaded.argv)
        with self.kept_apart():
            from noclobber.session import Session

            self._session = Session(on_write=self.on_write, contents=self.contents)
        after_import("torch", self._torch_is_there)
        error = program.execute(loaded)
        if error is not None and self._watched and self._session is not None:
            with self.kept_apart():
                self._session.escaped(error)
        self.status = program.show(error)
        self._interrupt = error if type(error) is KeyboardInterrupt else None
        del error  # and with it the frames, and their tensors, that `python` would no longer hold
        program.wind_down()

    @property
    def in_child(self) -> bool:
        """Return True in a child that the program forked; this run does not report its findings."""
        return os.getpid() != self._process

    @contextlib.contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Keep a crash inside noclobber for the end, so that it does not change what the program does."""
        try:
            yield
        except Exception as crash:
            self.crashes.append(crash)

    def _torch_is_there(self) -> None:
        if self._session is None or self.in_child or not _is_pytorch():
            return
        with self.kept_apart():
            try:
                self._session.start()
                self._watched = True
            except UnsupportedTorch as unsupported:
                self._unsupported = str(unsupported)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Restore folder and module path of the start, so that paths are relative to it and our own `rich` is found."""
        sys.path[:] = self._modules
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # the folder may be gone
                stack.enter_context(contextlib.chdir(self._folder))
            yield

    def report(self) -> Report:
        """Stop watching, and say what was found."""
        torch = sys.modules.get("torch") if self._watched else None
        about: dict[str, Any] = {
            "argv": self._argv,
            "status": self.status & 0xFF,
            "torch": str(torch.__version__) if torch is not None else None,
            "python": "{}.{}.{}".format(*sys.version_info),
        }
        if self._session is None:
            return Report(program=about)
        self._session.stop()
        return self._session.report(about)

    def nothing_to_watch(self) -> str:
        """Return why nothing was watched; empty if something was."""
        if self._watched:
            return ""
        if "torch" not in sys.modules:
            return "nothing to watch: torch was never imported"
        if not _is_pytorch():
            return f"nothing to watch: `torch` is {getattr(sys.modules['torch'], '__file__', None)}, not PyTorch"
        return f"nothing was watched: {self._unsupported}" if self._unsupported else "nothing was watched"

    def leave(self) -> None:
        """Raise KeyboardInterrupt where one ended the program, its traceback having been shown.

        The interpreter dies of SIGINT when that leaves it, so that a shell sees what happened.
        """
        if self._interrupt is not None:
            sys.excepthook = lambda *_: None
            raise self._interrupt


def _is_pytorch() -> bool:
    """A file of the user's own may be called torch.py."""
    return hasattr(sys.modules.get("torch"), "autograd")
