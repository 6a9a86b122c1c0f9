"""Whether a plain number may stand where a run saw a tensor: numbers have no `clone`, and no memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.holders.giving import given_by
from noclobber.syntax.names import (
    attributes_set,
    called,
    called_by,
    first_name,
    has_stars,
    is_declared,
    mentioned,
    owner,
    parameters,
    returned,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Function, functions, walk
from noclobber.syntax.writes import NAMESPACES, is_number

_METHODS = frozenset("item numel dim size tolist".split())  # noqa: SIM905
_BUILTINS = frozenset("float int len round".split())  # noqa: SIM905
"""Methods and functions that give numbers."""
_ARRAYS = ("math", "np", "numpy", "random")
"""Modules whose functions give numbers, or arrays, which have no `clone` either."""


def may_be_number(file: File, value: ast.expr | None, asked: frozenset[object] = frozenset()) -> bool:
    """Return True if an expression may give a number, as far as its file says: by a value of a name or an attribute, by
    what a function returns, or by what a call gives a parameter. `asked` are the names that are being looked up."""
    given: Iterator[ast.expr | None]
    key: object = None
    match value:
        case ast.Constant():
            return is_number(value)
        case ast.BinOp(left=left, right=right):
            return may_be_number(file, left, asked) and may_be_number(file, right, asked)
        case ast.UnaryOp(operand=inner) | ast.NamedExpr(value=inner):
            given = iter((inner,))
        case ast.IfExp(body=one, orelse=other):
            given = iter((one, other))
        case ast.BoolOp(values=several) | ast.Tuple(elts=several) | ast.List(elts=several):
            given = iter(several)
        case ast.Call() if is_number(value) or called(value) in (_BUILTINS if owner(value) is None else _METHODS):
            return True
        case ast.Call() if first_name(owner(value)) in _ARRAYS:
            return True
        case ast.Name(id=name) if name in (*NAMESPACES, *_ARRAYS):
            return True  # `def f(x, lib=torch):`
        case ast.Call():
            given, key = _gives(file, value), called(value)
        case ast.Attribute(attr=name):
            given, key = _set(file, name), f".{name}"
        case ast.Name(id=name):
            given, key = _bound(file, value, name), (file.scope(value), name)
        case _:
            return False
    return (key is None or key not in asked) and any(may_be_number(file, one, asked | {key}) for one in given)


def is_number_only(file: File, use: ast.Name) -> bool:
    """Return True if all that a variable of a function is bound to, or given for by the calls of the file, is plainly a
    number, and no other function binds it."""
    scope, name = file.scope(use), use.id
    if any(is_declared(one, name) for one in functions(file.tree)):
        return False
    if isinstance(scope, FUNCTION) and name in parameters(scope):
        made = [called_by(file, one) for one in mentioned(file, scope.name)]
        if scope.decorator_list or any(one is None or has_stars(one) for one in made):
            return False
    stored = uses(scope, name, ast.Store) or ([] if name in parameters(scope) else uses(file.tree, name, ast.Store))
    if any(value_given(file, one) is None for one in stored):
        return False
    given = list(_bound(file, use, name))
    return any(given) and all(one is None or (isinstance(one, ast.Constant) and is_number(one)) for one in given)


def _gives(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """The default of `options.get("by", 2.0)`; what a function of the file returns."""
    if called(call) == "get":
        yield from call.args[1:]
    elif owner(call) is None:
        yield from (each for one in functions(file.tree) if one.name == called(call) for each in returned(one))


def _set(file: File, name: str) -> Iterator[ast.expr | None]:
    """The values of an attribute, among them what objects of a class with such a field are made of."""
    yield from (value_given(file, one) for one in attributes_set(file, name))
    for one in walk(file.tree, ast.AnnAssign):
        around = file.class_of(one)
        if around is not None and one in around.body and getattr(one.target, "id", "") == name:
            yield one.value
            made = (called_by(file, each) for each in mentioned(file, around.name))
            yield from (each for call in made if call is not None for each in values(call))


def _bound(file: File, use: ast.Name, name: str) -> Iterator[ast.expr | None]:
    """The values that a variable is bound to in its scope, or in the file itself."""
    scope = file.scope(use)
    is_given = name in parameters(scope)
    if isinstance(scope, FUNCTION) and is_given:
        yield from _handed(file, scope, name)
    elif isinstance(scope, ast.Lambda) and is_given:  # `map(lambda q: x * q, (z, 2.0))`
        yield from walk(file.above[scope], ast.Constant)
    for one in uses(scope, name, ast.Store) or (uses(file.tree, name, ast.Store) if not is_given else []):
        head = file.above[one]
        yield head.iter if isinstance(head, (*FOR, ast.comprehension)) else value_given(file, one)


def _handed(file: File, function: Function, name: str) -> Iterator[ast.expr | None]:
    """What calls give a function for a parameter, also by a default. Where the function is handed on, or is given what
    is unpacked, whatever number stands there."""
    args, of = function.args, file.class_of(function)
    named = [*args.posonlyargs, *args.args]
    pairs = [*zip(named[::-1], args.defaults[::-1], strict=False), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    yield from (value for one, value in pairs if one.arg == name)
    for one in mentioned(file, of.name if of is not None and function.name == "__init__" else function.name):
        call = called_by(file, one)
        if call is not None and not has_stars(call):
            yield given_by(file, one, name, function)
        else:
            yield from walk(call or file.above[one], ast.Constant)
