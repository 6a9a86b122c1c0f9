"""Captures a place cheaply: the innermost user frame as (code, instruction), in about 0.15 us."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import CodeType, FrameType

from noclobber.model.source import Owner, Site, is_plumbing, is_settled, owner_of
from noclobber.observe.core.seen import traced_lines
from noclobber.observe.torch_api.autograd.engine_state import backward_call

Place = tuple[CodeType, int, "Place | None"]
"""(code, instruction offset, the library's place inside the call or None). It holds no frame.

A compiled region that runs as code of a graph is a place inside the call too. `site_of` finds the statement."""

KINDS: dict[str, int] = {}
"""The owner of a file's code as a number, by `co_filename`. Filled when a file is first seen."""
USER, _LIBRARY, SKIP, _TRACED, _GRAPH = 0, 1, 2, 3, 4
_without_text: set[str] = set()
"""Pseudo files, such as the `<string>` of `exec`, whose text `linecache` did not have. It may get the text later."""


def kind_of(path: str) -> int:
    """Return whose code a file is, as a number, and remember it if it is settled."""
    if path in _without_text and path not in linecache.cache:
        return SKIP
    if traced_lines.runs_graphs(path):
        KINDS[path] = _TRACED
        return _TRACED
    if traced_lines.is_written(path):
        KINDS[path] = _GRAPH
        return _GRAPH
    owner = owner_of(path)
    kind = USER if owner is Owner.USER else _LIBRARY if owner is Owner.LIBRARY and not is_plumbing(path) else SKIP
    if is_settled(path, owner):
        KINDS[path] = kind
    elif kind == SKIP:
        _without_text.add(path)
    return kind


def place_of(frame: FrameType | None) -> Place | None:
    """Return the place of the innermost user frame at or above `frame`, else that of the innermost library frame.

    In a thread of the engine it is the place of the backward call; None if nothing of this is known.
    """
    inside: Place | None = None
    in_graph, kinds = False, KINDS
    while frame is not None:
        code = frame.f_code
        kind = kinds.get(code.co_filename)
        if kind is None:
            kind = kind_of(code.co_filename)
        if kind == USER:
            return (code, frame.f_lasti, inside)
        if kind == _LIBRARY and inside is None:
            inside = (code, frame.f_lasti, None)
        elif kind == _GRAPH and not in_graph:
            inside, in_graph = (code, frame.f_lasti, inside), True
        elif kind == _TRACED and (found := traced_lines.instruction(frame)) is not None:
            return (*found, inside)
        frame = frame.f_back
    # A thread of the engine has no frame of the program. Its work belongs to the line that called backward.
    call = backward_call()
    if call is None or call.place is None:
        return inside
    return call.place if inside is None else (call.place[0], call.place[1], inside)


def caller() -> Place | None:
    """Return the place of the program's line that led here."""
    return place_of(sys._getframe(1)) if of_native is None else of_native()


of_native: Callable[[], Place | None] | None = None
"""Returns what `caller` returns; the native part sets it."""


def identity(place: Place | None) -> tuple[int, ...]:
    """Return what tells a place from others while it lives. To hash a place costs more: a code object hashes all its
    constants, which takes 0.3 us for a function and several for a long script (Python 3.11)."""
    if place is None:
        return ()
    code, lasti, inside = place
    return (id(code), lasti) if inside is None else (id(code), lasti, id(inside[0]), inside[1])


def site_of(place: Place | None) -> Site | None:
    """Return a place as a Site of the model; None for None."""
    if place is None:
        return None
    code, lasti, inside = place
    if inside is not None and traced_lines.is_written(inside[0].co_filename):
        graph, number, inside = inside
        statement, library = traced_lines.behind(graph, number)
        code, lasti = statement or (code, lasti)
        inside = inside or (library and (*library, None))
    return Site(code, lasti, site_of(inside))
