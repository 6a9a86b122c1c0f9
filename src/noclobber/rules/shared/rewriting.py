"""From the source text of a write to an edit that writes out of place; None where the text is not plainly one."""

from __future__ import annotations

import ast
from enum import Enum

from noclobber.model.finding import Edit
from noclobber.model.operators import WITHOUT_TWIN
from noclobber.model.source import Site
from noclobber.rules.shared.sourcetext import Path, bounds, path_to, source, span_in, statement, text_of

_OPERATORS: dict[type[ast.operator], tuple[str, int]] = {
    ast.BitOr: ("|", 1),
    ast.BitXor: ("^", 2),
    ast.BitAnd: ("&", 3),
    ast.LShift: ("<<", 4),
    ast.RShift: (">>", 4),
    ast.Add: ("+", 5),
    ast.Sub: ("-", 5),
    ast.Mult: ("*", 6),
    ast.Div: ("/", 6),
    ast.FloorDiv: ("//", 6),
    ast.Mod: ("%", 6),
    ast.MatMult: ("@", 6),
    ast.Pow: ("**", 8),
}
"""Symbol, and how tightly it binds."""
_UNARY, _ATOM = 7, 9
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Dict, ast.Set, ast.JoinedStr)
_FUNCTIONS = ("torch", "F", "functional")
"""The last name of what holds functions that take the tensor first and have a twin."""
_NAMESPACES = (*_FUNCTIONS, "nn", "init", "utils")
"""The first name of what is no tensor: `torch.nn.init.ones_` has no twin that returns another."""


class Form(Enum):
    """How the text of a write looks: `h += e`, `t.add_(x)`, `f(x, inplace=True)`, `h[i] = e`, a mere call, or else."""

    AUGMENTED = "augmented"
    METHOD = "method"
    FLAG = "flag"
    ITEM = "item"
    CALL = "call"
    OTHER = "other"


def form(site: Site | None) -> Form:
    """The form of the text at a site; OTHER where the source is missing."""
    return form_at(path_to(site))


def form_at(path: Path) -> Form:
    """The form of the text that a path leads to."""
    found = statement(path)
    if found is None:
        return Form.OTHER
    if isinstance(path[-1], ast.Call):
        call = path[-1]
        if flag_of(call) is not None:
            return Form.FLAG
        writes = called(call).endswith("_") or any(keyword.arg == "out" for keyword in call.keywords)
        return Form.METHOD if writes else Form.CALL
    if isinstance(path[-1], ast.Subscript) and isinstance(path[-1].ctx, ast.Store):
        return Form.ITEM
    return Form.AUGMENTED if isinstance(found, ast.AugAssign) else Form.OTHER


def out_of_place(site: Site | None) -> Edit | None:
    """The edit that makes a write out of place, for the three forms that allow it as they stand."""
    return None if site is None else out_of_place_at(site.code.co_filename, text_of(site), path_to(site))


def out_of_place_at(file: str, text: str, path: Path) -> Edit | None:
    """The same for a path in the text of a file."""
    kind, found = form_at(path), statement(path)
    if found is None:
        return None
    replacement: str | None = None
    if kind is Form.FLAG and isinstance(path[-1], ast.Call):
        flag = flag_of(path[-1])
        return None if flag is None else Edit(span_in(file, text, flag), "False")
    if kind is Form.AUGMENTED and isinstance(found, ast.AugAssign):
        replacement = _augmented(text, found, path)
    elif kind is Form.METHOD and isinstance(path[-1], ast.Call):
        replacement = _method(text, found, path[-1], path)
    return None if replacement is None else Edit(span_in(file, text, found), replacement)


def target_of(site: Site | None) -> ast.expr | None:
    """What is written, as an expression: `h` of `h += e`, `h[i]` of `h[i] = e`, `t` of `t.add_(x)`."""
    return target_at(path_to(site))


def target_at(path: Path) -> ast.expr | None:
    """The same for a path."""
    found = statement(path)
    if isinstance(found, ast.AugAssign):
        return found.target
    if path and isinstance(path[-1], ast.Subscript):
        return path[-1]
    if path and isinstance(path[-1], ast.Call):
        return _owner(chain_of(path[-1])[-1])
    return None


def in_loop(site: Site | None) -> bool:
    """Whether a `for` or `while` of the same file surrounds the site."""
    return any(isinstance(one, (ast.For, ast.While, ast.AsyncFor)) for one in path_to(site))


def _augmented(text: str, found: ast.AugAssign, path: Path) -> str | None:
    if not _rebinds(found.target, path):
        return None
    symbol, strength = _OPERATORS[type(found.op)]
    target, value = source(text, found.target), source(text, found.value)
    weak = _strength(found.value) < (_UNARY if strength > _UNARY else strength + 1)
    if weak or "\n" in value:
        value = f"({value})"
    return f"{target} = {target} {symbol} {value}"


def _method(text: str, found: ast.stmt, writing: ast.Call, path: Path) -> str | None:
    """`t.mul_(2).add_(x)` and `t = t.add_(x)` as `t = t.mul(2).add(x)`; `torch.relu_(t)` as `t = torch.relu(t)`."""
    if isinstance(found, ast.Expr):
        value, target = found.value, None
    elif isinstance(found, ast.Assign) and len(found.targets) == 1:
        value, target = found.value, found.targets[0]
    else:
        return None
    chain = chain_of(value)
    owner = _owner(chain[-1]) if chain else None
    if owner is None or writing not in chain or not all(has_twin(one) for one in chain):
        return None
    if not isinstance(owner, (ast.Name, ast.Attribute, ast.Subscript)) or not _rebinds(owner, path):
        return None
    name = source(text, owner)
    if target is not None and source(text, target) != name:
        return None
    return f"{name} = {twins(text, chain)}"


def twins(text: str, chain: list[ast.Call]) -> str:
    """The text of a chain of calls, each without its underscore."""
    start, end = bounds(text, chain[0])
    result = text[start:end]
    for one in chain:
        after = bounds(text, one.func)[1] - start
        result = result[: after - 1] + result[after:]
    return result


def chain_of(value: ast.expr) -> list[ast.Call]:
    """`t.mul_(2).add_(x)`: the call of `add_`, then that of `mul_`; empty for what is no call."""
    chain: list[ast.Call] = []
    while isinstance(value, ast.Call):
        chain.append(value)
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return chain


def _owner(call: ast.Call) -> ast.expr | None:
    """The tensor that a call writes: `t` of `t.add_(x)` and of `torch.add_(t, x)`."""
    if isinstance(call.func, ast.Attribute) and _first_name(call.func.value) not in _NAMESPACES:
        return call.func.value
    return call.args[0] if call.args else None


def source_name(value: ast.expr) -> str:
    """The last name of a dotted name: "functional" for `torch.nn.functional`; empty for anything else."""
    return value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""


def called(call: ast.Call) -> str:
    """The last name of what is called: "add_" for `h.add_(x)`."""
    return source_name(call.func)


def has_twin(call: ast.Call) -> bool:
    """Whether the same call without the underscore returns what it would write."""
    name = called(call)
    if (
        not isinstance(call.func, ast.Attribute)
        or not name.endswith("_")
        or name.startswith("_")
        or name in WITHOUT_TWIN
    ):
        return False
    owner = call.func.value
    return source_name(owner) in _FUNCTIONS or _first_name(owner) not in _NAMESPACES


def _first_name(value: ast.expr) -> str:
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def flag_of(call: ast.Call) -> ast.expr | None:
    """The `True` of `inplace=True`."""
    for keyword in call.keywords:
        if keyword.arg == "inplace" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
            return keyword.value
    return None


def _rebinds(target: ast.expr, path: Path) -> bool:
    """Whether binding a new tensor to `target` reaches what the write reached.

    Not so for the variable of a `for` loop (the list still holds the old tensor), nor where evaluating the target
    twice could do something twice.
    """
    if any(isinstance(one, (ast.Call, ast.Await, ast.NamedExpr, ast.Yield)) for one in ast.walk(target)):
        return False
    loops = [one for one in path if isinstance(one, (ast.For, ast.AsyncFor))]
    bound = {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    return not (isinstance(target, ast.Name) and target.id in bound)


def _strength(value: ast.expr) -> int:
    """How tightly the outermost operator of an expression binds; 0 for what always needs parentheses."""
    if isinstance(value, ast.BinOp):
        return _OPERATORS[type(value.op)][1]
    if isinstance(value, ast.UnaryOp) and not isinstance(value.op, ast.Not):
        return _UNARY
    return _ATOM if isinstance(value, _ATOMS) else 0
