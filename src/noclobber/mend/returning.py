"""Make a new tensor where a hook or a `backward` writes into a tensor that autograd gave it, or where PyTorch refuses a
call of which only the value is used.

Sound because no other code should see these writes: autograd gives gradients and saves to other parts too, and a
refused write never happened. The function itself computes with the new tensor.
- In a `backward` or a hook, the name is bound to the new tensor; no other name of the function may hold the old one.
- `return x.add_(1)`, and the same as the body of a lambda or a list, gives the new tensor in place of the written one.
"""

from __future__ import annotations

import ast

from noclobber.mend.finding import blamed
from noclobber.mend.holding import arguments_of, is_held_by_engine, root_of, writes_through
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Finding
from noclobber.syntax.edits import replace
from noclobber.syntax.tree import File, Place
from noclobber.syntax.writes import chain, has_twin, out_of_place, without_underscores, write_at

_IN_BACKWARD = ("NC206", "NC101", "NC201", "NC203", "NC204")
_REFUSED = ("NC206", "NC303", "NC307", "NC399")


def returned_new(finding: Finding) -> Sound | None:
    """Return a rewrite that makes a write in a custom backward out of place, or gives the value of a refused call."""
    place = blamed(finding)
    if place is None:
        return None
    file, node = place.file, place.node
    if finding.code in _REFUSED and isinstance(node, ast.Call) and (found := _valued(file, node)) is not None:
        return found
    write, scope = place.statement, file.scope(node)
    if finding.code not in _IN_BACKWARD or write is None or isinstance(scope, (ast.Module, ast.Lambda)):
        return None
    if scope.name != "backward" or "ctx" not in arguments_of(scope):
        return None
    return _bound(file, write)


def _bound(file: File, write: ast.stmt) -> Sound | None:
    target: ast.expr | None = None
    if isinstance(write, ast.AugAssign):
        target = write.target
    elif isinstance(write, ast.Expr) and isinstance(write.value, ast.Call):
        target = root_of(write.value)
    if not isinstance(target, ast.Name) or not is_held_by_engine(file, target.id, write):
        return None
    edits = []
    for one in dict.fromkeys(writes_through(file, file.scope(write), target.id)):
        found = out_of_place(write_at(Place(file, one)))
        if len(found) != 1 or not found[0].replacement.startswith(f"{target.id} = "):
            return None
        edits += found
    return Sound(
        f"make a new tensor of `{target.id}`, and leave the given tensor unchanged", tuple(edits), Cure.OUT_OF_PLACE
    )


def _valued(file: File, call: ast.Call) -> Sound | None:
    """`return x.sub_(m).div_(s)`: each call of the row without its underscore."""
    outer: ast.AST = call
    while isinstance(file.above[outer], (ast.Attribute, ast.Call)):
        outer = file.above[outer]
    if not isinstance(outer, ast.Call) or not isinstance(file.above[outer], (ast.Return, ast.Lambda, ast.ListComp)):
        return None
    calls = chain(outer) or [outer]
    if not all(map(has_twin, calls)):
        return None
    text = without_underscores(file, outer, calls)
    return Sound("give a new tensor instead of writing into this one", (replace(file, outer, text),), Cure.OUT_OF_PLACE)
