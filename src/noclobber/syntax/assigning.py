"""The statements that may set a variable, an attribute or an item, by the code that runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType

from noclobber.model.source import Site
from noclobber.syntax.names import (
    binds,
    dotted,
    is_declared,
    is_own,
    names_in,
    parameters,
    targets,
    unindexed,
    uses,
    uses_in,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Loop, file_at, first_line, functions, place_of, walk, within

Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign
Set = tuple[File, Assignment, ast.expr]
"""A statement that sets something, with its file, and what it sets."""

_PARTS = re.compile(r"(?:\[[^][]*\])*$")
"""The indices at the end of a name."""


def set_in(codes: Iterable[CodeType], name: str) -> Iterator[Set]:
    """Yield the statements of some functions that may set what a name stands for, other than to a constant: `self.mem`
    for `net.cell.mem`. `__init__` only begins it."""
    for code in codes:
        for file, scope in _scope(code) if code.co_name != "__init__" else ():
            for row in _rows(scope, name):
                if isinstance(row, Assignment) and row.value is not None and not isinstance(row.value, ast.Constant):
                    yield from ((file, row, target) for target in targets(row) if _is(target, name))


def _rows(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, and of the functions in it that say that this variable is not their own."""
    yield from within(scope, ast.AST)
    for inner in functions(scope):
        if inner is not scope and is_declared(inner, _PARTS.sub("", name)):
            yield from within(inner, ast.AST)


def _scope(code: CodeType) -> Sequence[tuple[File, ast.AST]]:
    """Return the function, or the module, of a code object, with its file; empty if its text is not known."""
    file = file_at(code.co_filename)
    if file is None or code.co_name == "<module>":
        return [] if file is None else [(file, file.tree)]
    named = (one for one in functions(file.tree) if one.name == code.co_name)
    return [(file, one) for one in named if one.lineno >= code.co_firstlineno >= first_line(one)][:1]


def _is(target: ast.expr, name: str) -> bool:
    """Return True if an expression may be this state, or an item of it: `self.mem` for `net.cell.mem`."""
    target = unindexed(target)
    owner, _, last = _PARTS.sub("", name).rpartition(".")
    return isinstance(target, ast.Attribute) and target.attr == last if owner else dotted(target) == last


def computes_from_itself(row: Assignment, name: str) -> bool:
    """Return True for `self.mem = f(self.mem)` and `mem += x`."""
    if isinstance(row, ast.AugAssign):
        return True
    return row.value is not None and any(_is(one, name) for one in walk(row.value, ast.expr))


def is_fresh(site: Site | None, name: str) -> bool:
    """Return True if each turn of the loop around a site, or each run of its function, binds a variable before it reads
    it: then it hands nothing on."""
    place = place_of(site)
    if place is None or not is_own(scope := place.file.scope(place.node), name):
        return False
    loop = next(iter(place.file.loops(place.node)), None)
    if loop is not None:
        return begins_anew(loop, name)
    return isinstance(scope, FUNCTION) and name not in parameters(scope) and uses(scope, name, ast.Store) != []


def begins_anew(loop: Loop, name: str) -> bool:
    """Return True if each turn of a loop binds the name before it reads it."""
    if isinstance(loop, FOR) and name in names_in(loop.target):
        return True
    if isinstance(loop, ast.While) and uses_in(loop.test, name, ast.Load):
        return False
    first = next((row for row in loop.body if name in names_in(row)), None)
    return isinstance(first, ast.Assign) and binds(first, name) and not uses_in(first.value, name, ast.Load)
