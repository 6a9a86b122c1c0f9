"""Tells an update by gradients, as `w -= lr * w.grad`, from other arithmetic."""

from __future__ import annotations

import ast

from noclobber.syntax.names import called, is_true, keyword
from noclobber.syntax.tree import File, within

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
    bound = [file.statement(one) for one in within(file.scope(node)) if _binds(one, node.id)]
    return bool(bound) and all(isinstance(one, (ast.Assign, ast.For)) and _gives_gradients(one) for one in bound)


def _binds(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)) or (
        isinstance(node, ast.arg) and node.arg == name
    )


def _gives_gradients(row: ast.Assign | ast.For) -> bool:
    """Whether a statement binds what `autograd.grad` gives: `g, = grad(loss, w)`."""
    value = row.value if isinstance(row, ast.Assign) else None
    while isinstance(value, ast.Subscript):
        value = value.value
    if not isinstance(value, ast.Call) or called(value) != "grad":
        return False
    graph = keyword(value, "create_graph")
    return graph is None or (isinstance(graph.value, ast.Constant) and not is_true(graph.value))
