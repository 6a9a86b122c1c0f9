"""Whether a backward still reads what a statement writes: what was computed before it, or what comes again."""

from __future__ import annotations

import ast

from noclobber.mend.holders.giving import asking
from noclobber.mend.holders.making import is_method
from noclobber.mend.scene import Scene
from noclobber.model.seen.events import Refusal
from noclobber.syntax.names import (
    called,
    called_by,
    calls,
    dotted,
    mentioned,
    names_in,
    owner,
    returned,
    uses,
)
from noclobber.syntax.tree import (
    COMPREHENSION,
    FUNCTION,
    LOOP,
    File,
    ends,
    starts,
    walk,
)
from noclobber.syntax.writes import (
    is_namespace,
    write_in,
)


def comes_again(scene: Scene, event: Refusal) -> bool:
    """Return True if a `forward` writes, or another function that gives back what it computes, or what these call, and
    a graph keeps the weight by then, or may keep it when it writes again before a backward: in a loop in which no
    backward surely runs, or by another call."""
    is_in_forward = False
    for place in filter(None, (scene.at(site.span()) for site in reversed(scene.finding.calls))):
        file, node, scope = place.file, place.node, place.file.scope(place.node)
        is_in_forward |= getattr(scope, "name", "") == "forward" or _computes(scope)
        if not is_in_forward:
            continue
        around = (one for one in file.around(node) if isinstance(one, (*LOOP, *COMPREHENSION)))
        loop = next((one for one in around if file.scope(one) is scope), None)
        turn = loop or scope
        backwards = [starts(one) for one in calls(turn, "backward", "grad") if not _is_conditional(file, one, turn)]
        if event.is_saved or (loop is not None and not backwards):
            return True
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        same = [starts(one) for one in walk(scope, ast.Call) if name and dotted(one.func) == name]
        end = min((one for one in backwards if one > starts(node)), default=None)
        if any(one > starts(node) and (end is None or one < end) for one in same):
            return True
        if backwards:
            return False
    return False


def _computes(function: ast.AST) -> bool:
    """Whether a function gives back what it computes: not the thing itself that it was given or has made."""
    given = returned(function) if isinstance(function, FUNCTION) else []
    found = [one for one in given if isinstance(one, (ast.BinOp, ast.Tuple, ast.Call))]
    return any(not called(one)[:1].isupper() for one in found)


def _is_conditional(file: File, node: ast.AST, within: ast.AST) -> bool:
    return any(isinstance(one, ast.If) and within in file.around(one) for one in file.around(node))


def is_awaited(file: File, write: ast.stmt) -> bool:
    """Return True if a backward after a write, also in a later turn of a loop, begins from what was computed before it:
    that may have saved what is written. So it may where the function of the write is called."""
    scope, loops = file.scope(write), file.loops(write)
    if isinstance(scope, FUNCTION):
        with asking(scope) as is_first:
            made = [called_by(file, one) for one in mentioned(file, scope.name)] if is_first else []
            rows = [file.statement(one) for one in made if one is not None]
            if any(is_awaited(file, one) for one in rows if one is not None):
                return True
    if _is_listed(file, write) or _is_given_back(file, write):
        return True
    for call in calls(scope, "backward", "grad"):
        again = next((one for one in loops if one in file.around(call)), None)
        below = starts(call) >= ends(write)
        of = owner(call)
        root = of if called(call) == "backward" and of and not is_namespace(of) else next(iter(call.args), None)
        for name in _added(root) - {write_in(file, write).name} if below or again is not None else ():
            bound = [file.nearest(one, ast.stmt) for one in uses(scope, name, ast.Store) if starts(one) < starts(call)]
            last = bound[-1] if bound else None
            if last is None:
                continue
            goes_on = isinstance(last, ast.AugAssign) or name in names_in(getattr(last, "value", last))
            if not below and (again is None or last is again or again not in file.around(last)):
                return True
            if below and (starts(last) < starts(write) or (goes_on and not set(loops) <= set(file.loops(call)))):
                return True
    return False


def _is_listed(file: File, write: ast.stmt) -> bool:
    """Whether a loop around a write lists what it computes, and a backward comes below it."""
    backwards = calls(file.scope(write), "backward", "grad")
    for loop in file.loops(write):
        lists = [one for call in calls(loop, "append") for one in call.args if next(walk(one, ast.Call), None)]
        if lists and not calls(loop, "backward", "grad") and any(starts(one) >= ends(loop) for one in backwards):
            return True
    return False


def _is_given_back(file: File, write: ast.stmt) -> bool:
    """Whether a function gives back, below a write, what it computes from what it called above it."""
    scope = file.scope(write)
    below = [one for one in returned(scope) if starts(one) >= ends(write)] if _computes(scope) else []
    names = {name for one in below if not isinstance(one, ast.Name) for name in names_in(one)}
    bound = (
        file.statement(one) for name in names for one in uses(scope, name, ast.Store) if starts(one) < starts(write)
    )
    return any(isinstance(one, ast.Assign) and next(walk(one.value, ast.Call), None) is not None for one in bound)


def _added(root: ast.expr | None) -> set[str]:
    """The names of `loss`, `(loss + more).backward()`, `losses[k].mean()` and `scaler.scale(loss)`."""
    if isinstance(root, ast.Call) and called(root) == "scale":
        return set[str]().union(*map(_added, root.args))
    if isinstance(root, ast.BinOp):
        return _added(root.left) | _added(root.right)
    if isinstance(root, (ast.List, ast.Tuple)):
        return set[str]().union(*map(_added, root.elts))
    while isinstance(root, ast.Subscript) or (isinstance(root, ast.Call) and is_method(root)):
        root = root.value if isinstance(root, ast.Subscript) else owner(root)
    return {root.id} if isinstance(root, ast.Name) else set()
