"""Give a new tensor where a hook or a `backward` writes into what autograd handed it, or where a call is refused whose
value is what counts.

Sound because nobody is to see these writes: autograd hands gradients and saves to others too, and a refused write never
happened. What the function computes with is the new tensor.
- In a `backward` or a hook, the name is bound to the new tensor; no other name of the function may hold the old one.
- `return x.add_(1)`, and the same as the body of a lambda or a list, gives the new tensor in place of the written one.
"""

from __future__ import annotations

import ast

from noclobber.model.finding import Finding
from noclobber.rewrites.code import File
from noclobber.rewrites.finding import blamed
from noclobber.rewrites.holding import arguments_of, is_held_by_engine, root_of, writes_through
from noclobber.rewrites.sound import Sound
from noclobber.rules.shared.editing import SHAPE_OPS
from noclobber.rules.shared.rewriting import called, chain_of, has_twin, out_of_place_at, twins

_IN_BACKWARD = ("NC206", "NC101", "NC201", "NC203", "NC204")
_REFUSED = ("NC206", "NC303", "NC307", "NC399")


def returned_new(finding: Finding) -> Sound | None:
    """A write in a backward or a hook made out of place, or the value of a refused call."""
    place = blamed(finding)
    if place is None:
        return None
    file, path = place
    if finding.code in _REFUSED and isinstance(path[-1], ast.Call) and (found := _valued(file, path[-1])) is not None:
        return found
    write = file.statement(path[-1])
    scope = file.scope(path[-1])
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
        place = (one, one.value) if isinstance(one, ast.Expr) else (one,)
        edit = out_of_place_at(file.path, file.text, place)
        if edit is None:
            return None
        edits.append(edit)
    return Sound(f"make a new tensor of `{target.id}`, and leave what autograd handed in as it is", tuple(edits))


def _valued(file: File, call: ast.Call) -> Sound | None:
    """`return x.sub_(m).div_(s)`: each call of the row without its underscore."""
    outer: ast.AST = call
    while isinstance(file.above[outer], (ast.Attribute, ast.Call)):
        outer = file.above[outer]
    if not isinstance(outer, ast.Call) or not isinstance(file.above[outer], (ast.Return, ast.Lambda, ast.ListComp)):
        return None
    chain = chain_of(outer)
    if not all(isinstance(one.func, ast.Attribute) and (has_twin(one) or called(one) in SHAPE_OPS) for one in chain):
        return None
    return Sound("give a new tensor instead of writing into this one", (file.edit(outer, twins(file.text, chain)),))
