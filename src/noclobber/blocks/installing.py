"""`install`: writes are watched for the whole program, and an error is explained when it comes."""

from __future__ import annotations

import atexit
import sys
from types import TracebackType
from typing import Self

from noclobber.blocks import warn
from noclobber.blocks.answers import PrintedReport, Reporting, counting, printed
from noclobber.processes.block import Blocks
from noclobber.session.session import Session


class Installed(Reporting):
    """What `install` returns: `uninstall` undoes it, also as the end of a `with` block."""

    def __init__(self, *, children: bool = False) -> None:
        self._session = Session(watching=False, notes=True)
        self._blocks = Blocks(self._session, children=children)
        self._blocks.begin()
        if children:
            atexit.register(self.uninstall)
        self._excepthook = sys.excepthook
        sys.excepthook = self._explain_uncaught

    def _explain_uncaught(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        self._session.escaped(error)
        self._excepthook(kind, error, error.__traceback__)

    @property
    def report(self) -> PrintedReport:
        """The in-place errors that a backward raised or that left the program. Comments on lines keep some out."""
        return printed(counting(self._blocks))

    def uninstall(self) -> None:
        """Leave PyTorch as it was found, and warn of what children found; a second call does nothing."""
        self._blocks.end()
        atexit.unregister(self.uninstall)
        if self._blocks.of_children:
            warn.of_findings(counting(self._blocks))
        if sys.excepthook == self._explain_uncaught:
            sys.excepthook = self._excepthook

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._session.escaped(error)
        self.uninstall()


def install(*, children: bool = False) -> Installed:
    """Watch writes only, for the whole program. An in-place error gets a note that explains it.

    The note knows the lines that wrote, but not the line that saved. `watch` and `noclobber run` know both.
    `children=True` does so in the processes that the program starts too, and warns of their errors at the end.
    """
    return Installed(children=children)
