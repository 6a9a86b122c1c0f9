"""The text of an operator that makes a new tensor, rewritten so that it writes into one of its operands."""

from __future__ import annotations

import ast

from noclobber.model.finding import Edit
from noclobber.model.hints import Spelling
from noclobber.model.operators import ACTIVATIONS
from noclobber.syntax.edits import insert, replace
from noclobber.syntax.names import called, dotted, first_name, has_stars, keyword
from noclobber.syntax.tree import File, Place
from noclobber.syntax.writes import ATOM, NAMESPACES, binding, is_namespace

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
}
_AUGMENTED: dict[type[ast.operator], str] = {ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/="}
_ALIASES = {
    "absolute": "abs", "clip": "clamp", "divide": "div", "multiply": "mul", "negative": "neg", "subtract": "sub",
    "true_divide": "div",
}  # fmt: skip
"""Names of methods and functions for operators of another name."""


def in_place(place: Place, op: str, argument: int, spelling: Spelling, name: str | None) -> Edit | None:
    """Return the edit that makes an operator write into one of its operands; None where the text allows none.

    `op` is such as "aten::relu", `argument` the position of the operand, and `name` what the program calls that.
    `h = h * 2` becomes `h *= 2`, `y = h * 2` becomes `y = h.mul_(2)`, `torch.relu(h)` becomes `torch.relu_(h)`,
    `h.exp()` becomes `h.exp_()`, and `F.relu(h)` becomes `F.relu(h, inplace=True)`.
    """
    file, node, op = place.file, place.node, op.partition("::")[2]
    if spelling.how == "function":
        return _flagged(file, node, spelling.name)
    if spelling.how == "module":
        return None
    if isinstance(node, ast.BinOp) and _OPERATORS.get(type(node.op)) == op:
        return _of_operator(file, node, op, argument, name)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and op == "neg":
        return replace(file, node, f"{_operand(file, node.operand)}.neg_()")
    if isinstance(node, ast.Call) and _ALIASES.get(called(node), called(node)) == op and not has_stars(node):
        return _of_call(file, node, argument)
    return None


def _of_operator(file: File, node: ast.BinOp, op: str, argument: int, name: str | None) -> Edit | None:
    left, right = node.left, node.right
    turned = argument == 1 or isinstance(left, ast.Constant) or (name and dotted(right) == name != dotted(left))
    if turned and op not in ("add", "mul"):
        return None
    target, value = (right, left) if turned else (left, right)
    if isinstance(target, ast.Constant):
        return None
    row = file.statement(node)
    symbol = _AUGMENTED.get(type(node.op))
    if isinstance(row, ast.Assign) and row.value is node and len(row.targets) == 1 and symbol and dotted(target):
        text = file.source(target)
        if file.source(row.targets[0]) == text:
            return replace(file, row, f"{text} {symbol} {file.source(value)}")
    return replace(file, node, f"{_operand(file, target)}.{op}_({file.source(value)})")


def _of_call(file: File, call: ast.Call, argument: int) -> Edit | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    end = file.span(call.func)
    underscore = insert(file, end.end_line, end.end_column, "_")
    if not is_namespace(call.func.value):
        if argument == 0:
            return underscore
        owner = call.func.value
        if len(call.args) != 1 or call.keywords:
            return None
        return replace(file, call, f"{_operand(file, call.args[0])}.{call.func.attr}_({file.source(owner)})")
    if first_name(call.func) not in NAMESPACES or argument >= len(call.args):
        return None
    if call.func.attr in ACTIVATIONS:  # most of these are no methods
        return underscore if argument == 0 else None
    target = call.args[argument]
    rest = [*(one for one in call.args if one is not target), *call.keywords]
    texts = ", ".join(file.source(one) for one in rest)
    return replace(file, call, f"{_operand(file, target)}.{call.func.attr}_({texts})")


def _flagged(file: File, node: ast.AST, name: str) -> Edit | None:
    if not isinstance(node, ast.Call) or called(node) != name or has_stars(node):
        return None
    return with_flag(file, node)


def with_flag(file: File, call: ast.Call) -> Edit | None:
    """Return the edit that adds `inplace=True` to a call; None where it has another value than a plain one."""
    flag = keyword(call, "inplace")
    if flag is not None:
        return replace(file, flag.value, "True") if isinstance(flag.value, ast.Constant) else None
    span = file.span(call)
    text = file.source(call)[:-1].rstrip()
    joint = "" if text.endswith("(") else " " if text.endswith(",") else ", "
    return insert(file, span.end_line, span.end_column - 1, f"{joint}inplace=True")


def _operand(file: File, node: ast.expr) -> str:
    text = file.source(node)
    return text if binding(node) == ATOM and "\n" not in text else f"({text})"
