"""A weight or buffer that a function reads more than once, and something overwrites: read from one clone of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.scene import Scene
from noclobber.model.finding import Cure
from noclobber.model.operators import VIEWS
from noclobber.syntax.edits import before, replace
from noclobber.syntax.names import dotted, is_stored
from noclobber.syntax.tree import FUNCTION, File, Function, Place, last_line, walk


def from_clone(scene: Scene) -> Iterator[Change]:
    """`memory = self.memory.clone()` before the first of several reads of `self.memory` that a write comes after."""
    seen = set()
    for place in scene.places("save") if scene.is_clobber and not scene.steps() else ():
        file, scope = place.file, place.file.scope(place.row)
        if not isinstance(scope, FUNCTION) or scope in seen:
            continue
        seen.add(scope)
        reads = _reads(scene, place, scope)
        for name in dict.fromkeys(dotted(one) for one in reads):
            some = [one for one in reads if dotted(one) == name]
            short = name.rpartition(".")[2]
            first = _statement_of(file, scope, some[0])
            if len(some) < 2 or first is None or _is_taken(scope, short):
                continue
            edit = before(file, first, f"{short} = {name}.clone()")
            if edit is not None:
                edits = (edit, *(replace(file, one, short) for one in some))
                yield Change(f"read from one clone of `{name}`", edits, 2, Cure.CLONE_FOR_READER)


def _reads(scene: Scene, place: Place, scope: Function) -> list[ast.Attribute]:
    """Where the function reads, up to the write, an attribute that stands in what saves."""
    file = place.file
    writes = [one for one in scene.writes() if one.file is file and one.file.scope(one.statement) is scope]
    until = min((one.statement.lineno for one in writes), default=last_line(scope) + 1)
    named = [one for one in walk(place.node, ast.Attribute) if dotted(one).startswith("self.")]
    saved = {dotted(one) for one in named if _is_tensor(file, one)}
    return [
        one
        for row in scope.body
        for one in walk(row, ast.Attribute)
        if dotted(one) in saved and one.lineno < until and not is_stored(file, one)
    ]


def _is_tensor(file: File, node: ast.Attribute) -> bool:
    """Whether an attribute may be a tensor, for all that the text shows: no method, and no owner but of a tensor's."""
    above = file.above[node]
    if isinstance(above, ast.Call):
        return above.func is not node
    if isinstance(above, ast.Attribute):
        outer = file.above[above]
        return above.attr in VIEWS or (isinstance(outer, ast.Call) and outer.func is above)
    return True


def _statement_of(file: File, scope: Function, node: ast.AST) -> ast.stmt | None:
    """The statement of the function's own block that holds a node."""
    around = [node, *file.around(node)]
    return next((one for one in scope.body if one in around), None)


def _is_taken(scope: Function, name: str) -> bool:
    """Whether the function has a variable or an argument of a name."""
    return any(one.arg == name for one in walk(scope, ast.arg)) or any(one.id == name for one in walk(scope, ast.Name))
