"""Warns of findings at the line, or at the function, that they are about."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable
from types import FrameType, FunctionType

from noclobber.model.error import ClobberWarning
from noclobber.model.report import Lost, Report
from noclobber.model.source import PASSED_OVER, Owner, cell_of, owner_of


def of_findings(report: Report, function: object = None, *, beside: BaseException | None = None) -> None:
    """Warn of the findings of a report, if it has any: at the line that leaves the block, or where a function is.

    An exception `beside` the warning is raised even if warnings are errors.
    """
    from noclobber import render

    if report.findings:
        with contextlib.suppress(ClobberWarning) if beside is not None else contextlib.nullcontext():
            _warn_at(render.render(report, "full"), function)


def of_failures(failures: Iterable[Lost]) -> None:
    """Warn of where noclobber itself failed."""
    for lost in failures:
        what = f"noclobber: internal error: {lost.way}: {lost.why}"
        _warn(f"{what}\n{lost.trace}" if lost.trace else what)


def _warn_at(text: str, function: object) -> None:
    if isinstance(function, FunctionType):
        code, known = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
        path = cell_of(code.co_filename) or code.co_filename
        warnings.warn_explicit(text, ClobberWarning, path, code.co_firstlineno, registry=known)
    else:
        _warn(text)


def _warn(text: str) -> None:
    """Warn at the program's innermost line; in a notebook, by the name of the cell and not of the file behind it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.NOCLOBBER:
        frame = frame.f_back
    if frame is None or not (cell := cell_of(frame.f_code.co_filename)):
        warnings.warn(text, ClobberWarning, stacklevel=_level_of_program())
        return
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, ClobberWarning, cell, frame.f_lineno, names.get("__name__"), registry)


def _level_of_program() -> int:
    """Return the `stacklevel` of the program's innermost frame, for the function that calls this.

    A callback is called by a library, and a warning is not about that library, whose warnings may be filtered out.
    """
    frame: FrameType | None = sys._getframe(1)
    level = outside = 0
    while frame is not None:
        level += frame.f_code.co_filename != PASSED_OVER  # which warnings do not count
        owner = owner_of(frame.f_code.co_filename)
        if owner is Owner.USER:
            return level
        outside = outside or level * (owner is not Owner.NOCLOBBER)
        frame = frame.f_back
    return outside or 1
