"""The IPython extension: `%%noclobber` watches a cell, `%noclobber on` watches every cell until `%noclobber off`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.display import display

from noclobber import render
from noclobber.model.reports.error import UnsupportedTorch
from noclobber.model.reports.report import Report
from noclobber.session.session import Session
from noclobber.settings.selection import Selection, selected

CELL_MAGIC = "%%noclobber"


class Options(argparse.ArgumentParser):
    """Refuses an option as other magics do: by UsageError, of which IPython shows only the text."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog}?` says what there is")


def _options(magic: str, description: str) -> Options:
    options = Options(magic, description=description, add_help=False)
    options.add_argument(
        "--no-contents", dest="contents", action="store_false", help="compare only versions, not saved bytes: cheaper"
    )
    options.add_argument("--ledger", action="store_true", help="also say which lines keep bytes for backward")
    options.add_argument("--hints", action="store_true", help="also say where an in-place write would save memory")
    options.add_argument(
        "--raise",
        dest="on_write",
        action="store_const",
        const="raise",
        default="record",
        help="stop at the first write that breaks a gradient, before it happens",
    )
    return options


_OF_A_CELL = _options(
    CELL_MAGIC, "Watch this cell for in-place writes that make a gradient wrong. `%noclobber on` watches all cells."
)
_OF_THE_LINE = _options(
    "%noclobber",
    "Watch cells for in-place writes that make a gradient wrong. "
    "`%%noclobber [options]` at the top of a cell watches this cell.",
)
_OF_THE_LINE.add_argument(
    "what",
    nargs="?",
    metavar="on|off|report",
    help="on: watch the cells that follow; off: no more, and show all that was found; report: show it now",
)


class Cells:
    """Watches cells of one shell, while it is loaded there."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._all: Session | None = None
        """Watches from `%noclobber on` to `%noclobber off`."""
        self._one: Session | None = None
        """Watches one cell."""
        self._asked: argparse.Namespace | None = None
        """The options of the cell that is about to run, if that cell is to be watched."""
        self._depth = self._depth_of_one = 0
        """How many cells run at the moment, one within the other, and how many do so in the cell that is watched."""
        self._text = ""
        """The text of the cell that runs, without those within it."""
        self._told: set[tuple[object, ...]] = set()
        """The identities of what has been shown."""
        self._in_error: set[tuple[object, ...]] = set()
        """The identities of what the error tells that has ended the cell."""
        self._handler = shell.custom_exceptions, shell.CustomTB

    def turn_on(self, options: argparse.Namespace) -> None:
        """Watch the cells from here on. Raises UsageError where noclobber cannot, or does already."""
        if self._all is not None:
            raise UsageError("noclobber is on already; `%noclobber off` ends it")
        self._told.clear()
        self._all = self._started(options)

    def report(self) -> Report:
        """Return what was found since `%noclobber on`. Raises UsageError where noclobber is off."""
        if self._all is None:
            raise UsageError("noclobber is off; `%noclobber on` watches the cells that follow")
        return selected(self._all.report(), Selection())

    def turn_off(self) -> None:
        self._end(self._all)
        self._all = None

    def stop(self) -> None:
        self._end(self._one)
        self._one = None
        self.turn_off()

    def transform(self, lines: list[str]) -> list[str]:
        """Take `%%noclobber` from the top of a cell, which keeps its lines, its value and its `await`.

        Within another cell magic it stays: there `within` runs the cell.
        """
        if self._depth:
            return lines
        self._asked = None
        if not lines or not lines[0].startswith(CELL_MAGIC) or lines[0][len(CELL_MAGIC) :][:1].strip():
            return lines
        self._asked = _OF_A_CELL.parse_args(shlex.split(lines[0][len(CELL_MAGIC) :], comments=True))
        first, rest = f"# {lines[0].rstrip()}\n", lines[1:]
        while rest and not rest[0].strip():
            first, rest = first + rest[0], rest[1:]
        if rest and rest[0].split() == ["%%time"]:
            # The code that `%%time` compiles has no name that leads to its lines. The code that `within` runs has one.
            self._asked, rest = None, [rest[0], lines[0], *rest[1:]]
        return [*first.splitlines(keepends=True), *cell_magic(rest)]  # type: ignore[no-untyped-call]

    transform.has_side_effects = True  # type: ignore[attr-defined]  # so IPython does not ask it whether a cell is whole

    def within(self, line: str, cell: str) -> None:
        """Run and watch what another cell magic got below `%%noclobber`, with the lines that the whole cell has."""
        options = _OF_A_CELL.parse_args(shlex.split(line, comments=True))
        whole, own = self._text.rstrip(), cell.rstrip()
        above = whole[: -len(own)].count("\n") if own and whole.endswith(own) else 0
        shell, self._asked = self._shell, options
        after = shell.execution_count  # since IPython 9 the number of the next cell while a cell runs
        assert shell.history_manager is not None
        shell.execution_count = len(shell.history_manager.input_hist_raw) - 1
        try:
            shell.run_cell("#\n" * above + cell, store_history=False)  # type: ignore[no-untyped-call]
        finally:
            shell.execution_count = after

    def begins(self, info: ExecutionInfo) -> None:
        """Watch the cell that is about to run, if it is asked for."""
        self._depth += 1
        if self._depth == 1:
            self._text = str(info.raw_cell)
        options, self._asked = self._asked, None
        if options is None or self._one is not None:
            return
        try:
            self._one, self._depth_of_one = self._started(options), self._depth
        except UsageError as reason:
            self._shell.show_usage_error(reason)  # type: ignore[no-untyped-call]

    def ended(self, result: ExecutionResult) -> None:
        """Show what a cell has found, and stop if only this cell is watched."""
        depth, self._depth = self._depth, max(0, self._depth - 1)  # the cell that loads noclobber did not begin here
        one = self._one if depth == self._depth_of_one else None
        session = one or (self._all if depth <= 1 else None)
        if session is None:
            return
        report = selected(session.report(), Selection())
        if one is not None:
            self._end(one)
            self._one = None
        in_error, self._in_error = self._in_error, set()
        told = self._told | in_error if one is None or self._all is not None else in_error
        news = tuple(one for one in report.findings if one.identity() not in told)
        self._told = told | {one.identity() for one in news}
        if news or (one is not None and result.success):
            show(replace(report, findings=news, ledger=report.ledger if one is not None else None))

    def _started(self, options: argparse.Namespace) -> Session:
        session = Session(
            on_write=options.on_write,
            contents=options.contents,
            notes=True,
            counting=options.ledger,
            hints=options.hints,
        )
        try:
            session.start()
        except UnsupportedTorch as reason:
            raise UsageError(str(reason)) from None
        if self._all is None and self._one is None:
            self._handler = self._shell.custom_exceptions, self._shell.CustomTB
            self._shell.set_custom_exc((Exception,), self._explain)  # type: ignore[no-untyped-call]
        return session

    def _end(self, session: Session | None) -> None:
        if session is not None:
            session.stop()
            if self._all is None or self._one is None:  # the last of them
                self._shell.custom_exceptions, self._shell.CustomTB = self._handler

    def _explain(
        self,
        shell: InteractiveShell,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType,
        tb_offset: int | None = None,
    ) -> Any:
        """Show an error as IPython does, explained if it is about writing in place, and without noclobber's frames."""
        for session in (self._one, self._all):
            if session is not None:
                explained = session.escaped(error)
                self._in_error |= {one.identity() for _, findings in explained for one in findings}
        kinds, handler = self._handler
        if isinstance(error, kinds):
            return handler(kind, error, error.__traceback__, tb_offset)
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)
        return None


def show(report: Report) -> None:
    """Show a report below the cell: as HTML where there is HTML, else as text."""
    text = render.render(report, "full").rstrip()
    display({"text/plain": text, "text/html": render.part(report)}, raw=True)  # type: ignore[no-untyped-call]


_loaded: dict[InteractiveShell, Cells] = {}


def load(shell: InteractiveShell) -> None:
    cells = Cells(shell)
    _loaded[shell] = cells

    def noclobber(line: str) -> None:
        options = _OF_THE_LINE.parse_args(shlex.split(line, comments=True))
        if options.what == "on":
            cells.turn_on(options)
        elif options.what in ("off", "report"):
            show(cells.report())
            if options.what == "off":
                cells.turn_off()
        else:
            instead = f", not {options.what!r}" if options.what else ""
            raise UsageError(f"`%noclobber` takes on, off or report{instead}; `%%noclobber` watches one cell")

    def noclobber_cell(line: str, cell: str) -> None:
        cells.within(line, cell)

    noclobber.__doc__, noclobber_cell.__doc__ = _OF_THE_LINE.format_help(), _OF_A_CELL.format_help()
    shell.magics_manager.register_function(noclobber, "line", "noclobber")
    shell.magics_manager.register_function(noclobber_cell, "cell", "noclobber")
    shell.input_transformers_cleanup.append(cells.transform)
    shell.events.register("pre_run_cell", cells.begins)
    shell.events.register("post_run_cell", cells.ended)


def unload(shell: InteractiveShell) -> None:
    """Leave a shell as it was before `load`."""
    cells = _loaded.pop(shell)
    cells.stop()
    shell.events.unregister("pre_run_cell", cells.begins)
    shell.events.unregister("post_run_cell", cells.ended)
    shell.input_transformers_cleanup.remove(cells.transform)
    for kind in ("line", "cell"):
        del shell.magics_manager.magics[kind]["noclobber"]
