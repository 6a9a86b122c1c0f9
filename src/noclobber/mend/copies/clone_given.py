"""Copy what is given: to a Function or module that writes its argument, or as the value that a refused write reads.

Sound because a refused write never happened, so there is nothing to keep but values. A custom Function that may not
write its argument gets a clone, if nothing reads the original afterwards. If the value overlaps the written memory, it
is read from a clone, so it keeps its bytes from before the write.

Tried is a clone for whatever writes what it is called with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.holders.holding import root_of
from noclobber.mend.scene import Scene
from noclobber.model.finding import Cause, Cure
from noclobber.model.silent import Undeclared
from noclobber.syntax.edits import append
from noclobber.syntax.names import called, dotted, uses, values
from noclobber.syntax.tree import File, ends, starts
from noclobber.syntax.writes import writes

_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def value_cloned(scene: Scene) -> Iterator[Change]:
    """`h[1:] = h[:-1]` as `h[1:] = h[:-1].clone()`: what is read is then no longer what is written."""
    for write in scene.writes() if scene.finding.cause is Cause.READS_TARGET else ():
        found = write.statement
        value = found.value if isinstance(found, (ast.Assign, ast.AugAssign)) and write.call is None else None
        if write.call is not None and called(write.call).endswith("_") and write.call.args:
            value = write.call.args[0]
        if isinstance(value, _PLAIN):
            edit, is_sound = append(write.file, value, ".clone()"), write.call is None
            yield Change("clone the value that is read", (edit,), 0, Cure.CLONE_VALUE, is_sound)


def argument_cloned(scene: Scene) -> Iterator[Change]:
    """`F.apply(x)` as `F.apply(x.clone())`: of the argument of the tensor's name, else of the first one."""
    if not (scene.may_write_anew or scene.is_leaf or isinstance(scene.finding.event, Undeclared)):
        return
    places = scene.places("write", "read")
    for place in places if scene.is_refused else ():
        call = place.node if called(place.node) == "apply" else None
        if isinstance(call, ast.Call) and call.args and _is_last_use(place.file, call, call.args[0]):
            edit = append(place.file, call.args[0], ".clone()")
            yield Change("give the Function a clone", (edit,), 1, Cure.CLONE_ARGUMENT, is_sound=True)
    for place in places:
        call = place.file.nearest(place.node, ast.Call)
        if call is None or writes(call) or called(call) in ("backward", "grad"):
            continue
        chosen = _argument(call, scene.name)
        if chosen is not None and not isinstance(chosen, ast.Constant):
            cost = 1 if called(call) == "apply" else 2 if place in scene.places("write") else LAST_RESORT + 3
            edit = append(place.file, chosen, ".clone()")
            yield Change(f"give `{called(call)}` a clone", (edit,), cost, Cure.CLONE_ARGUMENT)


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    """The argument of a call that has a dotted name, else the first one; None where that is unpacked or missing."""
    given = values(call)
    if not given or isinstance(given[0], ast.Starred):
        return None
    return next((one for one in given if name and dotted(one) == name), given[0])


def _is_last_use(file: File, call: ast.Call, argument: ast.expr) -> bool:
    """Return True if the result of a call is used, and nobody reads what the argument is a part of afterwards."""
    root, statement = root_of(argument), file.statement(call)
    plain = isinstance(argument, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(root, ast.Name)
    if statement is None or isinstance(statement, ast.Expr) or not plain or not isinstance(root, ast.Name):
        return False
    read = any(starts(one) >= ends(statement) for one in uses(file.scope(call), root.id, ast.Load))
    return isinstance(statement, ast.Return) or not (read or file.loops(statement))
