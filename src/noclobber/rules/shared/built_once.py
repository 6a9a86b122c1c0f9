"""Whether a graph was built once, before the loop in which every turn goes backward through it, or is handed on."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from types import CodeType

from noclobber.model.events import Carried
from noclobber.model.source import Site
from noclobber.syntax.names import called, calls, definition, dotted, first_name, made_of, names_bound, owner
from noclobber.syntax.tree import File, Loop, Place, last_line, place_of, walk
from noclobber.syntax.writes import NAMESPACES


def built_once(read: Site | None, saved: Site | None, states: Sequence[Carried] = ()) -> bool | None:
    """Return True if a backward stands in a loop, and its graph was built before that loop.

    Known where the line that saved is in the same function. Else the names of the loop say it: the loop never binds the
    loss, or it carries no name from turn to turn and calls nothing that could have built the graph. So do `states`, by
    which alone the backward reaches the graph, as was seen: nothing sets them after they were made. None if not known.
    """
    place = place_of(read)
    loop = _loop_of(place)
    if place is None or loop is None or read is None:
        return False
    if saved is not None and _holds(read.code, saved.code):
        return not loop.lineno <= saved.line <= last_line(loop)
    if states and all(is_renewed(read, one) is False for one in states):
        return True
    if saved is None:
        return False
    names = made_of({name for one in calls(place.row, "backward") for name in names_bound(one.func)}, loop)
    if any(_is_carried(loop, name) for name in names):
        return False
    if any(_may_run(place.file, one, saved.code.co_name) for one in walk(loop, ast.Call)):
        return None
    return any(one.id in names and not loop.lineno <= one.lineno for one in walk(place.file.scope(loop), ast.Name))


def is_renewed(read: Site | None, state: Carried) -> bool | None:
    """Return True if each turn of the loop around a backward gives a state its next value: it was seen to hold that, or
    the loop sets it. False if nothing in the file sets it after it was made. None if not known.
    """
    place = place_of(read)
    loop = _loop_of(place)
    if state.is_renewed or place is None or loop is None:
        return True
    whole = state.name.partition("[")[0]
    named = walk(loop, ast.Name, ast.Attribute, ast.Subscript)
    stored = (one for one in named if isinstance(getattr(one, "ctx", None), ast.Store))
    if any(dotted(one.value if isinstance(one, ast.Subscript) else one) in (state.name, whole) for one in stored):
        return True
    last = re.split(r"\W", whole)[-1]
    if "." not in whole:
        return None if any(_may_fill(place.file, one) for one in walk(loop, ast.Name) if one.id == last) else False
    held = (one for one in walk(place.file.tree, ast.Attribute) if one.attr == last)
    return None if any(_may_set(place.file, one) for one in held) else False


def is_carried(read: Site | None, name: str) -> bool:
    """Return True if the loop around a backward hands a variable from turn to turn."""
    loop = _loop_of(place_of(read))
    return loop is not None and _is_carried(loop, name)


def steps_in_loop(read: Site | None) -> bool:
    """Return True if the loop around a backward calls `step`, as of an optimizer."""
    loop = _loop_of(place_of(read))
    return bool(calls(loop, "step"))


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


_READING = ("items", "keys", "values", "get", "size", "shape", "detach", "clone", "backward")
"""What is asked of a container or tensor without a change of it."""


def _may_set(file: File, held: ast.Attribute) -> bool:
    """Return True if an attribute is set here, outside of `__init__`, or if what it holds may be filled."""
    above = file.above[held]
    target = above if isinstance(above, ast.Subscript) and above.value is held else held
    is_set = isinstance(target.ctx, ast.Store) and getattr(file.scope(held), "name", "") != "__init__"
    return is_set or _may_fill(file, held)


def _may_fill(file: File, held: ast.expr) -> bool:
    """Return True if a container is given away here, or if a method of it is called that may put something into it."""
    above = file.above[held]
    if isinstance(above, ast.Attribute):
        return isinstance(file.above[above], ast.Call) and above.attr not in _READING
    return isinstance(above, (ast.Call, ast.keyword, ast.Starred))


def _may_run(file: File, call: ast.Call, function: str) -> bool:
    """Return True if a call may run a function of this name: of the program itself, a method, a module's `forward`."""
    of, name = owner(call), called(call)
    if name == function:
        return True
    if name in _ELSEWHERE or hasattr(builtins, name) or is_of_loss(file, call):
        return False
    return of is None or first_name(of) == "self" or called(definition(file, of, call))[:1].isupper()


def is_of_loss(file: File, call: ast.Call) -> bool:
    """Return True for a function of PyTorch, and for a loss by its class or its name: neither has weights."""
    is_known = first_name(owner(call)) in NAMESPACES or called(definition(file, call.func, call)).endswith("Loss")
    return is_known or any(word in called(call).lower() for word in ("loss", "criterion"))


_ELSEWHERE = ("backward", "step", "zero_grad", "append", "item")
"""Methods that build no graph."""


def _holds(code: CodeType, other: CodeType) -> bool:
    """Whether `other` is `code`, or a comprehension or lambda in it."""
    nested = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name.startswith("<")]
    return code is other or any(_holds(one, other) for one in nested)
