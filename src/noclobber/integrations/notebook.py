"""The IPython extension: `%%noclobber` watches a cell, `%noclobber on` watches every cell until `%noclobber off`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.display import display

from noclobber import render
from noclobber.model.error import UnsupportedTorch
from noclobber.model.report import Report
from noclobber.selection import Selection, selected
from noclobber.session import Session

CELL_MAGIC = "%%noclobber"


class Options(argparse.ArgumentParser):
    """Refuses an option as other magics do: by UsageError, of which IPython shows the text alone."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `%noclobber?` says what there is")


_OPTIONS = Options(
    "%noclobber",
    description="Watch cells for in-place writes that make a gradient wrong. "
    "`%%%%noclobber [options]` at the top of a cell watches this cell.",
    add_help=False,
)
_OPTIONS.add_argument(
    "what",
    choices=("on", "off", "report", "cell"),
    help="on: watch the cells that follow; off: no more, and show all that was found; report: show it now",
)
_OPTIONS.add_argument(
    "--no-contents", dest="contents", action="store_false", help="compare only versions, not saved bytes: cheaper"
)
_OPTIONS.add_argument("--ledger", action="store_true", help="also say which lines keep bytes for backward")
_OPTIONS.add_argument("--hints", action="store_true", help="also say where an in-place write would save memory")
_OPTIONS.add_argument(
    "--raise",
    dest="on_write",
    action="store_const",
    const="raise",
    default="record",
    help="stop at the first write that breaks a gradient, before it happens",
)


class Cells:
    """Watches cells of one shell, while it is loaded there."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._session: Session | None = None
        self._is_of_one_cell = False
        self._told: set[tuple[object, ...]] = set()
        """The identities of what has been shown."""
        self._handler = shell.custom_exceptions, shell.CustomTB

    def start(self, session: Session, *, one_cell: bool) -> None:
        """Watch from here on. Raises UsageError where noclobber cannot."""
        try:
            session.start()
        except UnsupportedTorch as reason:
            raise UsageError(str(reason)) from None
        self._session, self._is_of_one_cell = session, one_cell
        self._told.clear()
        self._handler = self._shell.custom_exceptions, self._shell.CustomTB
        self._shell.set_custom_exc((Exception,), self._explain)  # type: ignore[no-untyped-call]

    @property
    def on(self) -> bool:
        """Return True while cells are watched."""
        return self._session is not None

    def stop(self) -> None:
        """Watch no more."""
        if self._session is not None:
            self._session.stop()
            self._session = None
            self._shell.custom_exceptions, self._shell.CustomTB = self._handler

    def report(self) -> Report:
        """Return what was found since watching began."""
        assert self._session is not None
        return replace(selected(self._session.report(), Selection()), ledger=self._session.ledger())

    def ended(self, result: ExecutionResult) -> None:
        """Show what a cell has found, and stop if only this cell is watched."""
        session = self._session
        if session is None:
            return
        one_cell = self._is_of_one_cell
        report = replace(selected(session.report(), Selection()), ledger=session.ledger() if one_cell else None)
        if one_cell:
            self.stop()
        noted = "\n".join(getattr(result.error_in_exec, "__notes__", ()))
        in_error = {one.identity() for one in report.findings if f"[{one.code}]: {one.message}" in noted}
        self._told |= in_error
        news = tuple(one for one in report.findings if one.identity() not in self._told)
        self._told.update(one.identity() for one in news)
        if news or (one_cell and not in_error):
            show(replace(report, findings=news))

    def _explain(
        self,
        shell: InteractiveShell,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType,
        tb_offset: int | None = None,
    ) -> Any:
        """Show an error as IPython does, explained if it is about writing in place, and without noclobber's frames."""
        if self._session is not None:
            self._session.escaped(error)
        kinds, handler = self._handler
        if isinstance(error, kinds):
            return handler(kind, error, error.__traceback__, tb_offset)
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)
        return None


def show(report: Report) -> None:
    """Show a report below the cell: as HTML where there is HTML, else as text."""
    display({"text/plain": render.render(report, "full").rstrip(), "text/html": render.part(report)}, raw=True)  # type: ignore[no-untyped-call]


def _as_line_magic(lines: list[str]) -> list[str]:
    """`%%noclobber --ledger` begins the cell that it stands in, which keeps its lines, its value and its `await`."""
    if not lines or not lines[0].startswith(CELL_MAGIC) or lines[0][len(CELL_MAGIC) :][:1].strip():
        return lines
    return [f"%noclobber cell {lines[0][len(CELL_MAGIC) :].strip()}\n", *lines[1:]]


_loaded: dict[InteractiveShell, Cells] = {}


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell."""
    cells = Cells(shell)
    _loaded[shell] = cells

    def noclobber(line: str) -> None:
        options = _OPTIONS.parse_args(shlex.split(line))
        if options.what in ("on", "cell"):
            if cells.on:
                raise UsageError("noclobber is on already; `%noclobber off` ends it")
            session = Session(
                on_write=options.on_write,
                contents=options.contents,
                notes=True,
                counting=options.ledger,
                hints=options.hints,
            )
            cells.start(session, one_cell=options.what == "cell")
        elif not cells.on:
            raise UsageError("noclobber is off; `%noclobber on` watches the cells that follow")
        else:
            show(cells.report())
            if options.what == "off":
                cells.stop()

    noclobber.__doc__ = _OPTIONS.format_help()  # what `%noclobber?` shows
    shell.magics_manager.register_function(noclobber, "line", "noclobber")
    shell.input_transformers_cleanup.append(_as_line_magic)
    shell.events.register("post_run_cell", cells.ended)


def unload(shell: InteractiveShell) -> None:
    """Leave a shell as it was before `load`."""
    cells = _loaded.pop(shell)
    cells.stop()
    shell.events.unregister("post_run_cell", cells.ended)
    shell.input_transformers_cleanup.remove(_as_line_magic)
    del shell.magics_manager.magics["line"]["noclobber"]
