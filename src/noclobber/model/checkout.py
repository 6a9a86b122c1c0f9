"""What was found in another checkout of a program, at the files of this one.

The nodes of a CI job may have the same files in other folders. To a reader, to settings and to a baseline each of these
is one file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from noclobber.model.finding import Label
from noclobber.model.source import Site, Span, source_line, told_site

Found = TypeVar("Found")


def in_checkout(found: Found, folder: str) -> Found:
    """Return a report, or findings, with the files of a folder in place of those of other checkouts.

    A folder is another checkout if each line of it that a label shows is the same here. Where `folder` is empty,
    nothing changes.
    """
    if not folder:
        return found
    is_same: dict[str, bool] = {}
    for label in _labels(found):
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


def _labels(value: Any) -> Iterator[Label]:
    if isinstance(value, Label):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _labels(one)
    elif is_dataclass(value):
        for part in fields(value):
            yield from _labels(getattr(value, part.name))


@cache
def _root(path: str, folder: str) -> str:
    """Return the folder outside of this one in which a file lies as another one lies here; empty if there is none."""
    parts = path.split(os.sep)
    if path.startswith(folder + os.sep):
        return ""
    beginnings = (at for at in range(1, len(parts)) if os.path.isfile(os.path.join(folder, *parts[at:])))
    return os.sep.join(parts[: next(beginnings, 0)])


def _shows(label: Label, path: str) -> bool:
    """Return True if a file has the lines of a label where the label has them."""
    span = label.span
    return tuple(source_line(path, line) for line in range(span.line, span.end_line + 1)) == label.source
