"""A weight or buffer that a function reads more than once, and something overwrites: read from one clone of it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.syntax import ParsedFile, before, dotted, replace, walk
from noclobber.fix.candidates.write_syntax import VIEWS, is_stored, written
from noclobber.fix.edits.candidate import Candidate


def from_clone(scene: Scene, cost: int = 2) -> Iterator[Candidate]:
    """`memory = self.memory.clone()` before the first of several reads of `self.memory` that a write comes after."""
    seen = set()
    for place in scene.places("save"):
        file, scope = place.file, place.file.scope(place.statement)
        if not isinstance(scope, cst.FunctionDef) or scope in seen:
            continue
        seen.add(scope)
        reads = _reads(scene, place, scope)
        for name in dict.fromkeys(dotted(one) for one in reads):
            some = [one for one in reads if dotted(one) == name]
            short = name.rpartition(".")[2]
            first = _statement_of(file, scope, some[0])
            if len(some) < 2 or first is None or any(one.value == short for one in _plain_names(file, scope)):
                continue
            edit = before(file, first, f"{short} = {name}.clone()")
            if edit is not None:
                edits = (edit, *(replace(file, one, short) for one in some))
                yield Candidate(f"read from one clone of `{name}`", edits, cost)


def _reads(scene: Scene, place: Place, scope: cst.FunctionDef) -> list[cst.Attribute]:
    """Where the function reads, up to the write, an attribute that stands in what saves."""
    file = place.file
    writes = [one for one in written(scene) if one.file is file and one.file.scope(one.statement) is scope]
    until = min((file.line(one.statement) for one in writes), default=file.span(scope).end_line + 1)
    named = [one for one in walk(place.node, cst.Attribute) if dotted(one).startswith("self.")]
    saved = {dotted(one) for one in named if _is_tensor(file, one)}
    return [
        one
        for one in walk(scope.body, cst.Attribute)
        if dotted(one) in saved and file.line(one) < until and not is_stored(file, one)
    ]


def _is_tensor(file: ParsedFile, node: cst.Attribute) -> bool:
    """Whether an attribute may be a tensor, for all that the text shows: no method, and no owner but of a tensor's."""
    parent = file.parents[node]
    if isinstance(parent, cst.Call):
        return parent.func is not node
    if isinstance(parent, cst.Attribute):
        above = file.parents[parent]
        return parent.attr.value in VIEWS or (isinstance(above, cst.Call) and above.func is parent)
    return True


def _statement_of(file: ParsedFile, scope: cst.FunctionDef, node: cst.CSTNode) -> cst.CSTNode | None:
    """The statement of the function's own block that holds a node."""
    around = [node, *file.ancestors(node)]
    return next((one for one in scope.body.body if one in around), None)


def _plain_names(file: ParsedFile, scope: cst.FunctionDef) -> Iterator[cst.Name]:
    for one in walk(scope, cst.Name):
        parent = file.parents[one]
        if not (isinstance(parent, cst.Attribute) and parent.attr is one):
            yield one
