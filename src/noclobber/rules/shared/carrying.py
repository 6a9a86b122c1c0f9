"""The states that carry a freed graph along: their names, how to detach them, and the line that sets them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import CodeType

from noclobber.model.events import Carried, Refusal
from noclobber.model.finding import Label
from noclobber.model.source import Site, Span, source_line
from noclobber.rules.shared.built_once import is_carried
from noclobber.syntax.names import dotted, is_declared, targets
from noclobber.syntax.tree import File, Function, file_at, functions, walk, within

Assignment = ast.Assign | ast.AugAssign | ast.AnnAssign

_PARTS = re.compile(r"(?:\[[^][]*\])*$")
"""The indices at the end of a name."""


def states(event: Refusal) -> list[Carried]:
    """Return the carried states, by the name that the loop hands on if it is known.

    The parts of a tuple are one state. So are several items of a list or dict.
    """
    found, beside = dict[str, Carried](), Counter(map(_owner, event.carried))
    for one in event.carried:
        if one.variable and is_carried(event.site, one.variable):
            scope = () if event.site is None else (Site(event.site.code, 0),)
            one = Carried(one.variable, "name", scope)
        elif one.kind == "tuple" or (one.kind == "item" and beside[_owner(one)] > 1):
            one = replace(one, name=_owner(one))
        found.setdefault(one.name, one)
    return list(found.values())


def _owner(one: Carried) -> str:
    """ "bank" of "bank[0]"."""
    return one.name.rpartition("[")[0]


def detached(one: Carried) -> str:
    """Return how to detach a state: the statement in backticks."""
    if one.kind == "item" and not one.name.endswith("]"):
        return f"each tensor in `{one.name}`, where it is stored"
    value = f"tuple(part.detach() for part in {one.name})" if one.kind == "tuple" else f"{one.name}.detach()"
    return f"`{one.name} = {value}`"


def notes(event: Refusal) -> list[str]:
    """Return the note that names the carried states; empty if none is known."""
    names = " and ".join(f"`{one.name}`" for one in states(event))
    return [f"{names} {'lead' if ' and ' in names else 'leads'} to the graph of an earlier iteration"] if names else []


def labels(event: Refusal) -> list[Label]:
    """Return a label for each line that is known to set a carried state."""
    found: dict[Span, Label] = {}
    for one in states(event):
        for file, row, target in _set_at(one):
            span = file.span(row)
            lines = tuple(source_line(span.path, number) for number in range(span.line, span.end_line + 1))
            text = f"`{ast.unparse(target)}` carries the old graph over from here"
            found.setdefault(span, Label("create", span, text, False, lines))
    return list(found.values())


def _set_at(one: Carried) -> list[tuple[File, Assignment, ast.expr]]:
    """Return the statement that sets a state, with what it sets: the one that computes it from its old value, else the
    only one that may run again. Empty if neither is known."""
    found = [
        (file, row, target)
        for code in [site.code for site in one.scopes if site.code.co_name != "__init__"]
        for file, scope in _scope(code)
        for row in _rows(scope, one.name)
        if isinstance(row, Assignment) and row.value is not None and not isinstance(row.value, ast.Constant)
        for target in targets(row)
        if _is(target, one.name)
    ]
    again = [(file, row, target) for file, row, target in found if _computes_from_itself(row, one.name)]
    chosen = again or [entry for entry in found if one.kind == "attribute" or _in_loop(*entry)]
    return chosen if len({row for _, row, _ in chosen}) == 1 else []


def _in_loop(file: File, row: Assignment, _: ast.expr) -> bool:
    return bool(file.loops(row))


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
    return [(file, one) for one in named if one.lineno >= code.co_firstlineno >= _first_line(one)][:1]


def _first_line(function: Function) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _is(target: ast.expr, name: str) -> bool:
    """Return True if an expression may be this state, or an item of it: `self.mem` for `net.cell.mem`."""
    while isinstance(target, ast.Subscript):
        target = target.value
    owner, _, last = _PARTS.sub("", name).rpartition(".")
    return isinstance(target, ast.Attribute) and target.attr == last if owner else dotted(target) == last


def _computes_from_itself(row: Assignment, name: str) -> bool:
    if isinstance(row, ast.AugAssign):
        return True
    return any(_is(one, name) for one in walk(row.value, ast.expr)) if row.value is not None else False
