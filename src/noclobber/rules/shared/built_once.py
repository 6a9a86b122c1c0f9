"""Whether a graph was built once, before the loop in which every turn goes backward through it."""

from __future__ import annotations

import ast
import builtins
from types import CodeType

from noclobber.model.source import Site
from noclobber.syntax.names import called, calls, definition, first_name, made_of, names_bound
from noclobber.syntax.tree import File, Loop, Place, last_line, place_of, walk
from noclobber.syntax.writes import NAMESPACES


def built_once(read: Site | None, saved: Site | None) -> bool | None:
    """Return True if a backward stands in a loop, and its graph was built before that loop.

    Known where the line that saved is in the same function. Else the names of the loop say it: the loop never binds the
    loss, or it carries no name from turn to turn and calls nothing that could have built the graph. None if not known.
    """
    place = place_of(read)
    loop = _loop_of(place)
    if place is None or loop is None or read is None or saved is None:
        return False
    if _holds(read.code, saved.code):
        return not loop.lineno <= saved.line <= last_line(loop)
    losses = (one.func for one in walk(place.row, ast.Call) if called(one) == "backward")
    names = made_of({name for loss in losses for name in names_bound(loss)}, loop)
    if any(_is_carried(loop, name) for name in names):
        return False
    if any(_may_run(place.file, one, saved.code.co_name) for one in walk(loop, ast.Call)):
        return None
    return any(one.id in names and not loop.lineno <= one.lineno for one in walk(place.file.scope(loop), ast.Name))


def is_carried(read: Site | None, name: str) -> bool:
    """Return True if the loop around a backward hands a variable from turn to turn."""
    loop = _loop_of(place_of(read))
    return loop is not None and _is_carried(loop, name)


def steps_in_loop(read: Site | None) -> bool:
    """Return True if the loop around a backward calls `step`, as of an optimizer."""
    loop = _loop_of(place_of(read))
    return loop is not None and calls(loop, "step")


def _loop_of(place: Place | None) -> Loop | None:
    """The innermost loop around a place, in its function."""
    return next(iter(place.file.loops(place.node)), None) if place is not None else None


def _is_carried(loop: Loop, name: str) -> bool:
    """Return True if a turn of a loop reads a name before it binds it, and then binds it."""
    uses = [one for row in loop.body for one in walk(row, ast.Name) if one.id == name]
    stored = [one for one in uses if isinstance(one.ctx, ast.Store)]
    added = {one.target for row in loop.body for one in walk(row, ast.AugAssign)}
    read = [one for one in uses if isinstance(one.ctx, ast.Load) or one in added]
    first = min((one.lineno for one in stored), default=None)
    return first is not None and any(one.lineno <= first for one in read)


def _may_run(file: File, call: ast.Call, function: str) -> bool:
    """Return True if a call may run a function of this name: of the program itself, a method, a module's `forward`."""
    name, owner = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    if name == function:
        return True
    if name in _ELSEWHERE or first_name(owner) in NAMESPACES or hasattr(builtins, name):
        return False
    made = definition(file, call.func, call)
    if called(made).endswith("Loss") or any(word in name.lower() for word in ("loss", "criterion")):
        return False
    return owner is None or first_name(owner) == "self" or called(definition(file, owner, call))[:1].isupper()


_ELSEWHERE = ("backward", "step", "zero_grad", "append", "item")
"""Methods that build no graph."""


def _holds(code: CodeType, other: CodeType) -> bool:
    """Whether `other` is `code`, or a comprehension or lambda in it."""
    nested = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name.startswith("<")]
    return code is other or any(_holds(one, other) for one in nested)
