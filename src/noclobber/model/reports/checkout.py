"""What was found in another checkout of a program, at the files of this one.

The nodes of a CI job may have the same files in other folders. To a reader, to settings and to a baseline each of these
is one file.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.report import Report
from noclobber.model.source import Site, Span, source_line, told_site

Found = TypeVar("Found", Report, tuple[Finding, ...])


def in_checkout(found: Found, folder: str) -> Found:
    """Return a report, or findings, with the files of a folder in place of those of other checkouts.

    A folder is another checkout if each line of it that a label shows is the same here. Where `folder` is empty,
    nothing changes.
    """
    if not folder:
        return found
    is_same: dict[str, bool] = {}
    findings = found if isinstance(found, tuple) else (*found.findings, *(one.finding for one in found.suppressed))
    for label in (label for finding in findings for label in finding.labels):
        path = label.span.path
        root = _root(path, folder)
        if root and any(label.source):
            is_same[root] = is_same.get(root, True) and _shows(label, folder + path.removeprefix(root))
    roots = sorted((root for root, same in is_same.items() if same), key=len, reverse=True)

    @cache
    def here(path: str) -> str:
        moved = (folder + path.removeprefix(root) for root in roots if path.startswith(root + os.sep))
        return next(filter(os.path.isfile, moved), path)

    def moved(value: Any) -> Any:
        if isinstance(value, Span):
            return replace(value, path=here(value.path))
        if isinstance(value, Site):
            return told_site(moved(value.span()), moved(value.inside))
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{one.name: moved(getattr(value, one.name)) for one in fields(value)})
        return value

    made: Found = moved(found) if roots else found
    return made


@cache
def _root(path: str, folder: str) -> str:
    """Return the folder outside of this one in which a file lies as another one lies here; empty if there is none."""
    parts = path.split(os.sep)
    if path.startswith(folder + os.sep):
        return ""
    beginnings = (at for at in range(1, len(parts)) if os.path.isfile(os.path.join(folder, *parts[at:])))
    return os.sep.join(parts[: next(beginnings, 0)])


def _shows(label: Label, path: str) -> bool:
    span = label.span
    return tuple(source_line(path, line) for line in range(span.line, span.end_line + 1)) == label.source
