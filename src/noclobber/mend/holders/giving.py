"""What the calls of a file give a function for its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from noclobber.syntax.names import (
    Name,
    attributes,
    bindings,
    called,
    called_by,
    dotted,
    has_stars,
    last_name,
    mentioned,
    only_target,
)
from noclobber.syntax.tree import FUNCTION, File, Function, Scope, walk


def given_by(file: File, use: ast.expr, name: str, function: Function) -> ast.expr | None:
    """What a mention of a function that calls it gives for a parameter; None where that is not known."""
    call = called_by(file, use)
    if call is None or has_stars(call):
        return None
    places = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    places = places[1:] if file.class_of(function) is not None and not function.decorator_list else places
    args = call.args if run_by(call) is call.func else call.args[1:]
    return (dict(zip(places, args, strict=False)) | {one.arg: one.value for one in call.keywords if one.arg}).get(name)


def given_for(file: File, name: str, function: Scope) -> list[ast.expr]:
    """What the file gives a function for a parameter, wherever it calls it; empty where others may call it too. The
    calls of `__init__` are those of its class."""
    if not isinstance(function, FUNCTION) or function.name in ("forward", "backward"):
        return []
    if any(last_name(one) != "staticmethod" for one in function.decorator_list):
        return []
    of = file.class_of(function)
    if of is not None and function.name == "__call__":
        named = _objects(file, of)
    else:
        named = mentioned(file, of.name if of is not None and function.name == "__init__" else function.name)
    given = [given_by(file, one, name, function) for one in named]
    return [one for one in given if one is not None] if None not in given else []


def put_back(file: File, name: str, function: Scope) -> set[str]:
    """The last names of the attributes that the calls of a function bind to what it gives back for a parameter, each
    the one that it is given: `self.h = update(self.h, x)`. The function itself has none of these names."""
    found, returns = set[str](), [*walk(function, ast.Return)]
    for given in given_for(file, name, function):
        row, call = file.statement(given), file.above[given]
        target = row.targets[0] if isinstance(row, ast.Assign) and len(row.targets) == 1 and row.value is call else None
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        at = next((n for n, one in enumerate(parts) if dotted(one) and dotted(one) == dotted(given)), -1)
        back = [one.value.elts if isinstance(one.value, ast.Tuple) else [one.value] for one in returns]
        is_back = back != [] and all(len(one) == len(parts) and dotted(one[at]) == name for one in back)
        if isinstance(given, ast.Attribute):
            if at < 0 or not is_back or attributes(function, given.attr):
                return set()
            found.add(given.attr)
    return found


def _objects(file: File, of: ast.ClassDef) -> list[Name]:
    """Where a file mentions the objects of a class; nothing unless each is bound to a variable of a function, which no
    other file can import, and which is bound once."""
    found = list[Name]()
    if any(isinstance(one.func, ast.Name) and one.func.id == "self" for one in walk(of, ast.Call)):
        return []
    for one in mentioned(file, of.name):
        made = called_by(file, one)
        target = only_target(file.above[made]) if made is not None else None
        scope = file.scope(target) if isinstance(target, ast.Name) else None
        if not isinstance(target, ast.Name) or not isinstance(scope, FUNCTION):
            return []
        if len(bindings(file, scope, target.id)) != 1:
            return []
        found += mentioned(file, target.id)
    return found


def run_by(call: ast.Call) -> ast.expr:
    """What a call runs: `checkpoint(self.block, h)` runs `self.block`, and keeps `h` as autograd keeps a save."""
    return call.args[0] if called(call) == "checkpoint" and call.args else call.func


_asked: ContextVar[frozenset[Scope]] = ContextVar("asked", default=frozenset())
"""Functions that are being looked into."""


@contextmanager
def asking(function: Scope) -> Iterator[bool]:
    """Look into a function. Gives False if the search is already inside it, because it calls itself."""
    before = _asked.get()
    token = _asked.set(before | {function})
    try:
        yield function not in before
    finally:
        _asked.reset(token)
