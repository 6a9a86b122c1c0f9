"""Warns of findings at the line, or at the function, that they are about."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable
from traceback import walk_stack
from types import FrameType, FunctionType

from noclobber import render
from noclobber.model.reports.error import ClobberWarning
from noclobber.model.reports.report import Lost, Report
from noclobber.model.source import Owner, cell_of, owner_of


def of_findings(report: Report, function: object = None, *, beside: BaseException | None = None) -> None:
    """Warn of the findings of a report, if it has any: at the line that leaves the block, or where a function is.

    An exception `beside` the warning is raised even if warnings are errors.
    """
    if report.findings:
        with contextlib.suppress(ClobberWarning) if beside is not None else contextlib.nullcontext():
            _warn(render.render(report, "full"), function)


def of_failures(failures: Iterable[Lost]) -> None:
    """Warn of where noclobber itself failed."""
    for lost in failures:
        what = f"noclobber: internal error: {lost.way}: {lost.why}"
        _warn(f"{what}\n{lost.trace}" if lost.trace else what)


def _warn(text: str, function: object = None) -> None:
    """Warn where a function is, or else at the program's innermost line; in a notebook, by the name of the cell."""
    if isinstance(function, FunctionType):
        code, line, names = function.__code__, function.__code__.co_firstlineno, function.__globals__
    else:
        frame = _of_program(sys._getframe(1))
        code, line, names = frame.f_code, frame.f_lineno, frame.f_globals
    path = cell_of(code.co_filename) or code.co_filename
    known = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, ClobberWarning, path, line, names.get("__name__"), known)


def _of_program(frame: FrameType) -> FrameType:
    """Return the program's innermost frame; where there is none, that of who has called noclobber.

    A callback is called by a library, and a warning is not about that library, whose warnings may be filtered out.
    """
    outside = []
    for above, _ in walk_stack(frame):  # of the standard library: it tells of failures of ours
        owner = owner_of(above.f_code.co_filename)
        if owner is Owner.USER:
            return above
        outside += [above] * (owner is not Owner.NOCLOBBER)
    return outside[0] if outside else frame
