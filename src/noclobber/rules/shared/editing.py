"""Edits for refused writes: a guard, a clone before, a clone of the value, a dropped underscore, a dropped `out=`."""

from __future__ import annotations

import ast
import re

from noclobber.model.finding import Edit
from noclobber.model.source import Site
from noclobber.rules.shared.rewriting import called, has_twin, out_of_place, source_name, target_of
from noclobber.rules.shared.sourcetext import bounds, path_to, source, span_of, statement, text_of

SHAPE_OPS = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "detach_")
"""Methods that change no element; their twin without the underscore returns what they would have made of the tensor."""

_PLAIN = (
    "len", "float", "int", "size", "numel", "range", "item", "randn", "rand", "zeros", "ones", "full", "tensor",
    "arange", "randn_like", "rand_like", "zeros_like", "ones_like", "full_like",
)  # fmt: skip
"""Functions whose result no gradient flows through."""


def guarded(site: Site | None) -> Edit | None:
    """Put the statement under `with torch.no_grad():`, where it has a line of its own and the file imports torch.

    A value that is tracked would lose its gradient without a word: to be asked for only where the intent is plain.
    """
    text, found = text_of(site), statement(path_to(site))
    if site is None or found is None or not re.search(r"^\s*import torch\b(?! as)", text, re.MULTILINE):
        return None
    indent = indent_of(text, found)
    if indent is None or found.lineno != found.end_lineno:
        return None
    start, end = bounds(text, found)
    return Edit(span_of(site, found), f"with torch.no_grad():\n{indent}    {text[start:end]}")


def computes(site: Site | None) -> bool:
    """Whether the statement calls what may give a tracked value: anything but plain functions and writing methods."""
    found = statement(path_to(site))
    calls = [one for one in ast.walk(found) if isinstance(one, ast.Call)] if found is not None else []
    return any(not called(one).endswith("_") and not _plain(one) for one in calls)


def writes_numbers(site: Site | None) -> bool:
    """Whether the value written is made of numbers alone, for all that its text shows."""
    found = statement(path_to(site))
    if isinstance(found, (ast.Assign, ast.AugAssign)):
        return _number(found.value)
    call = found.value if isinstance(found, ast.Expr) else None
    return isinstance(call, ast.Call) and called(call).endswith("_") and all(_number(one) for one in call.args)


def used_after(site: Site | None, name: str) -> bool:
    """Whether the function around the site, or the file, reads a name in a line after the statement."""
    path = path_to(site)
    found = statement(path)
    around = [one for one in path if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    scope = around[-1] if around else ast.parse(text_of(site))
    end = found.end_lineno if found is not None else None
    read = (one for one in ast.walk(scope) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return end is not None and any(one.id == name and one.lineno > end for one in read)


def by_iteration(site: Site | None) -> bool:
    """Whether what is written is the variable of a `for` loop around it, or a part of it."""
    target = target_of(site)
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    loops = [one for one in path_to(site) if isinstance(one, (ast.For, ast.AsyncFor))]
    bound = {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    return isinstance(target, ast.Name) and target.id in bound


def cloned_first(site: Site | None) -> Edit | None:
    """`h = h.clone()` on a line before `h[i] = e` or `h[i] += e`, where `h` is read later on."""
    text, found = text_of(site), statement(path_to(site))
    if site is None or not isinstance(found, (ast.Assign, ast.AugAssign)):
        return None
    target = found.target if isinstance(found, ast.AugAssign) else found.targets[0]
    indent = indent_of(text, found)
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)) or indent is None:
        return None
    if not used_after(site, target.value.id):
        return None
    start, end = bounds(text, found)
    name = target.value.id
    return Edit(span_of(site, found), f"{name} = {name}.clone()\n{indent}{text[start:end]}")


def cloned_value(site: Site | None) -> Edit | None:
    """`.clone()` after the `e` of `h[i] = e`, `h += e` and `h.copy_(e)`, where it needs no parentheses."""
    text, path = text_of(site), path_to(site)
    found = statement(path)
    if site is None or found is None:
        return None
    value: ast.expr | None = None
    if isinstance(path[-1], ast.Call):
        value = path[-1].args[0] if called(path[-1]).endswith("_") and path[-1].args else None
    elif isinstance(found, (ast.Assign, ast.AugAssign)):
        value = found.value
    if not isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return None
    return Edit(span_of(site, value), f"{source(text, value)}.clone()")


def renamed(site: Site | None) -> Edit | None:
    """The edit of `out_of_place`; beyond it, `return t.add_(x)` and other uses of the value, and `SHAPE_OPS`."""
    edit = out_of_place(site)
    text, path = text_of(site), path_to(site)
    if edit is not None or site is None or not path or not isinstance(path[-1], ast.Call):
        return edit
    discarded = isinstance(statement(path), ast.Expr)
    call, name = path[-1], called(path[-1])
    alters_shape = name in SHAPE_OPS
    if not isinstance(call.func, ast.Attribute) or not (has_twin(call) or alters_shape):
        return None
    end = bounds(text, call.func)[1] - bounds(text, call)[0]
    whole = source(text, call)
    twin = whole[: end - 1] + whole[end:]
    if not discarded:
        return Edit(span_of(site, call), twin)
    owner = call.func.value
    whole_statement = alters_shape and isinstance(path[-2], ast.Expr) and not by_iteration(site)
    if not whole_statement or not isinstance(owner, (ast.Name, ast.Attribute)):
        return None
    return Edit(span_of(site, call), f"{source(text, owner)} = {twin}")


def without_out(site: Site | None) -> Edit | None:
    """`torch.add(x, 1, out=y)` as `y = torch.add(x, 1)`, where the call is a statement and `out=` comes last."""
    text, path = text_of(site), path_to(site)
    if site is None or len(path) < 2 or not isinstance(path[-1], ast.Call) or not isinstance(path[-2], ast.Expr):
        return None
    call = path[-1]
    out = call.keywords[-1] if call.keywords else None
    if out is None or out.arg != "out" or not isinstance(out.value, (ast.Name, ast.Attribute)):
        return None
    before = [*call.args, *(keyword.value for keyword in call.keywords[:-1])]
    if not before:
        return None
    start, end = bounds(text, call)[0], bounds(text, max(before, key=lambda one: bounds(text, one)[1]))[1]
    return Edit(span_of(site, call), f"{source(text, out.value)} = {text[start:end]})")


def cloned_argument(site: Site | None) -> Edit | None:
    """`Function.apply(x)` as `Function.apply(x.clone())`: its first argument."""
    text, path = text_of(site), path_to(site)
    if site is None or not path or not isinstance(path[-1], ast.Call) or called(path[-1]) != "apply":
        return None
    first = path[-1].args[0] if path[-1].args else None
    if not isinstance(first, (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    return Edit(span_of(site, first), f"{source(text, first)}.clone()")


def _number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _number(value.left) and _number(value.right)
    if isinstance(value, ast.UnaryOp):
        return _number(value.operand)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _plain(value))


def _plain(call: ast.Call) -> bool:
    of_math = isinstance(call.func, ast.Attribute) and source_name(call.func.value) in ("math", "np", "numpy", "random")
    return of_math or called(call) in _PLAIN


def indent_of(text: str, found: ast.stmt) -> str | None:
    """The blanks before a statement; None where something else shares its line."""
    line = text.split("\n")[found.lineno - 1]
    before = line.encode()[: found.col_offset].decode()
    after = text.split("\n")[(found.end_lineno or found.lineno) - 1].encode()[found.end_col_offset :].decode().strip()
    return before if not before.strip() and (not after or after.startswith("#")) else None
