"""Tells an update by gradients, as `w -= lr * w.grad`, from other arithmetic."""

from __future__ import annotations

import ast

from noclobber.syntax.names import called, is_given, keyword, parameters, uses
from noclobber.syntax.tree import File

_PLAIN = ("sign", "sqrt", "clamp", "abs", "mul", "norm", "size", "len")
"""Calls that keep a gradient a gradient."""


def is_of_gradients(file: File, value: ast.expr) -> bool:
    """Return True if a value is plain arithmetic of names, numbers and at least one gradient.

    A gradient is a `.grad`, or a name that is bound to what `autograd.grad` gives without a graph of its own.
    """
    nodes = list(ast.walk(value))
    plain = all(called(one) in _PLAIN for one in nodes if isinstance(one, ast.Call))
    return plain and any(_is_gradient(file, one) for one in nodes)


def _is_gradient(file: File, node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return False
    scope = file.scope(node)
    bound = [file.statement(one) for one in uses(scope, node.id, ast.Store)]
    return bool(bound) and node.id not in parameters(scope) and all(map(_gives_gradients, bound))


def _gives_gradients(row: ast.stmt | None) -> bool:
    """Whether a statement binds what `autograd.grad` gives: `g, = grad(loss, w)`."""
    value = row.value if isinstance(row, ast.Assign) else None
    while isinstance(value, ast.Subscript):
        value = value.value
    if not isinstance(value, ast.Call) or called(value) != "grad":
        return False
    return keyword(value, "create_graph") is None or is_given(value, "create_graph", False)
