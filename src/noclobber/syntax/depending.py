"""Which values a function computes from those of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from noclobber.model.seen.operators import FLAT
from noclobber.syntax.names import (
    called,
    dotted,
    is_given,
    is_untracked,
    own_names,
    owner,
    targets,
    value_given,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, ends, nested, starts, within
from noclobber.syntax.writes import base_of, tensors_given, writes, written_by

_ABOUT = ("device", "dtype", "grad", "layout", "ndim", "requires_grad", "shape")
"""Attributes of a tensor that do not change with its values, and `grad`, through which nobody differentiates here."""
_AS = ("expand_as", "reshape_as", "to", "type_as", "view_as")
"""Methods that take only the shape or the type of what they are given."""
_COLLECTS = ("append", "extend", "insert")
"""Methods that put something into a list."""
_ALWAYS = (0, 0)


class _Made(NamedTuple):
    """What gives a name a value. `at` is where it stands, and `_ALWAYS` for a function, which computes it when it is
    called."""

    at: tuple[int, int]
    name: str
    value: ast.AST


def depends_on(file: File, value: ast.expr, name: str, row: ast.stmt) -> bool:
    """Return True if the source shows that a value changes with the tensor that has a name at a statement.

    It may do so by way of other names, to which the function gives what it computes from this tensor. What it computed
    from another tensor that had the name before is not meant, and neither is what has a derivative of zero.
    """
    scope, around = file.scope(row), (row, *file.around(row))
    bound = (one for one in within(scope, ast.Assign, ast.AnnAssign, *FOR) if starts(one) < starts(row))
    own = (one for one in bound if name in map(ast.unparse, targets(one)))
    begin = max((starts(one) for one in own if any(each in around for each in file.block(one))), default=_ALWAYS)
    end = max((ends(one) for one in file.loops(row) if starts(one) > begin), default=starts(row))
    made = [one for one in _made(file, scope) if one.name and (one.at == _ALWAYS or begin < one.at < end)]
    made.sort(key=lambda one: one.at)
    names, known = {name}, 0
    while known < len(names):  # once more after a loop, whose last lines come before its first
        known = len(names)
        for one in made:
            if one.name not in names and _changes_with(names, one.value):
                names.add(one.name)
    return _changes_with(names, value)


def _made(file: File, scope: ast.AST) -> Iterator[_Made]:
    """Yield what gives a name of a scope a value: bindings, loops, writes in place and functions."""
    for row in within(scope, ast.stmt):
        whole: ast.expr | None = row.iter if isinstance(row, FOR) else getattr(row, "value", None)
        for target in targets(row):
            given = value_given(file, target) or whole
            if given is not None:
                yield _Made(_ALWAYS if isinstance(given, ast.Lambda) else starts(row), _name(target), given)
    for walrus in within(scope, ast.NamedExpr):
        yield _Made(starts(walrus), _name(walrus.target), walrus.value)
    for item in within(scope, ast.withitem):
        yield _Made(starts(item.context_expr), _name(item.optional_vars), item.context_expr)
    for call in within(scope, ast.Call):
        changed = written_by(call) if writes(call) else owner(call) if called(call) in _COLLECTS else None
        yield _Made(starts(call), _name(changed), call)
    for inner in nested(scope):
        if isinstance(inner, FUNCTION):
            yield _Made(_ALWAYS, inner.name, inner)


def _name(target: ast.expr | None) -> str:
    return dotted(base_of(target))


def _changes_with(names: set[str], node: ast.AST) -> bool:
    """Return True if the value of a node changes with what has one of some names, other than in steps."""
    if isinstance(node, FUNCTION):
        names = names - own_names(node)
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and (dotted(node) or ast.unparse(node)) in names:
        return True
    return any(_changes_with(names, one) for one in _operands(node))


def _operands(node: ast.AST) -> list[ast.AST]:
    """Return what the value of a node is computed from."""
    steps = isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv))
    if steps or called(node) in FLAT or (isinstance(node, ast.Attribute) and node.attr in _ABOUT):
        return []
    if not isinstance(node, ast.Call):
        return list(ast.iter_child_nodes(node))
    has_no_graph = called(node) == "grad" and not is_given(node, "create_graph", value=True)
    if is_untracked(node) or called(node) == "detach" or has_no_graph:
        return []  # a constant to autograd, however the write is written
    name, tensors = called(node), tensors_given(node)
    if name.endswith("_like") or name.startswith("new_"):
        return [*tensors[1:]]
    return [*tensors[:1]] if name in _AS else [node.func, *tensors]
