"""The text of an operator that makes a new tensor, rewritten so that it writes into one of its operands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from noclobber.model.reports.finding import Edit
from noclobber.model.seen.hints import Spelling
from noclobber.model.seen.operators import ACTIVATIONS
from noclobber.syntax.edits import insert, replace, with_argument
from noclobber.syntax.names import called, dotted, first_name, has_stars, is_numeric, keyword
from noclobber.syntax.tree import File, Place, Placed
from noclobber.syntax.writes import ATOM, NAMESPACES, OPERATORS, PLAIN, binding, is_namespace

_ALIASES = {
    "absolute": "abs", "clip": "clamp", "divide": "div", "multiply": "mul", "negative": "neg", "subtract": "sub",
    "true_divide": "div",
}  # fmt: skip
"""Names of methods and functions for operators of another name."""


class InPlace(NamedTuple):
    """An edit, and the expression that is then written into."""

    edit: Edit
    target: ast.expr | None


def in_place(place: Place, op: str, argument: int, spelling: Spelling, *, numbers: bool = False) -> list[InPlace]:
    """Return the edits that make an operator write into one of its operands; several where the text leaves it open.

    `op` is such as "aten::relu", `argument` the position of the operand, and `numbers` says that the others are plain
    numbers. `h = h * 2` becomes `h *= 2`, `y = h * 2` becomes `y = h.mul_(2)`, `torch.relu(h)` becomes
    `torch.relu_(h)`, `h.exp()` becomes `h.exp_()`, and `F.relu(h)` becomes `F.relu(h, inplace=True)`.
    """
    file, node, op = place.file, place.node, op.partition("::")[2]
    if spelling.how == "function":
        edit = with_flag(file, node) if isinstance(node, ast.Call) and called(node) == spelling.name else None
        return [InPlace(edit, first_argument(node))] if edit is not None else []
    if isinstance(node, ast.BinOp) and OPERATORS[type(node.op)][2] == op:
        return list(_of_operator(file, node, op, argument, numbers))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and op == "neg":
        return [InPlace(replace(file, node, f"{_operand(file, node.operand)}.neg_()"), node.operand)]
    if isinstance(node, ast.Call) and _ALIASES.get(called(node), called(node)) == op and not has_stars(node):
        found = _of_call(file, node, argument)
        return [found] if found is not None else []
    return []


def first_argument(node: ast.AST) -> ast.expr | None:
    """The first argument of a call that is given without a name."""
    return node.args[0] if isinstance(node, ast.Call) and node.args else None


def _of_operator(file: File, node: ast.BinOp, op: str, argument: int, numbers: bool) -> Iterator[InPlace]:
    sides = [(node.left, node.right), (node.right, node.left)]
    if op not in ("add", "mul"):
        sides = sides[:1]
    elif not numbers:
        sides = [sides[argument]]
    else:  # `k * h` calls the operator with `h` first, as `h * k` does
        sides = [(target, value) for target, value in sides if not is_numeric(file, target)]
    for target, value in sides:
        row, text = file.statement(node), file.source(target)
        is_bound = isinstance(row, ast.Assign) and row.value is node and [*map(file.source, row.targets)] == [text]
        if row is not None and is_bound and type(node.op) in PLAIN.values() and dotted(target):
            symbol = OPERATORS[type(node.op)][0]
            yield InPlace(replace(file, row, f"{text} {symbol}= {file.source(value)}"), target)
            continue
        yield InPlace(replace(file, node, f"{_operand(file, target)}.{op}_({file.source(value)})"), target)


def _of_call(file: File, call: ast.Call, argument: int) -> InPlace | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    end = file.span(call.func)
    underscore = insert(file, end.end_line, end.end_column, "_")
    owner, name = call.func.value, call.func.attr
    if not is_namespace(owner):
        if argument == 0:
            return InPlace(underscore, owner)
        if len(call.args) != 1 or call.keywords:
            return None
        text = f"{_operand(file, call.args[0])}.{name}_({file.source(owner)})"
        return InPlace(replace(file, call, text), call.args[0])
    if first_name(call.func) not in NAMESPACES or argument >= len(call.args):
        return None
    target: ast.expr = call.args[argument]
    if name in ACTIVATIONS:  # most of these are no methods
        return InPlace(underscore, target) if argument == 0 else None
    rest: list[Placed] = [*(one for one in call.args if one is not target), *call.keywords]
    texts = ", ".join(file.source(one) for one in rest)
    return InPlace(replace(file, call, f"{_operand(file, target)}.{name}_({texts})"), target)


def with_flag(file: File, call: ast.Call) -> Edit | None:
    """Return the edit that gives a call `inplace=True`; None where that cannot be said."""
    if has_stars(call):
        return None
    flag = keyword(call, "inplace")
    if flag is None:
        return with_argument(file, call, "inplace=True")
    return replace(file, flag.value, "True") if isinstance(flag.value, ast.Constant) else None


def _operand(file: File, node: ast.expr) -> str:
    text = file.source(node)
    return text if binding(node) == ATOM and "\n" not in text else f"({text})"
