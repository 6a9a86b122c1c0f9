"""What rules read from the text of a write: its form, its target, whether a new tensor could replace it."""

from __future__ import annotations

import ast

from noclobber.model.operators import ACTIVATIONS
from noclobber.model.source import Site
from noclobber.syntax.names import (
    bound_by_loop,
    called,
    dotted,
    is_read_after,
    is_untracked,
    names_bound,
)
from noclobber.syntax.tree import place_of, statement_of, walk
from noclobber.syntax.writes import (
    Form,
    WriteSyntax,
    chain,
    out_of_place,
    write_at,
)


def write_of(site: Site | None) -> WriteSyntax | None:
    """The write at a site; None where the source is missing."""
    place = place_of(site)
    return write_at(place) if place is not None else None


def form(site: Site | None) -> Form:
    """The form of the text at a site; OTHER where the source is missing."""
    write = write_of(site)
    return write.form if write is not None else Form.OTHER


def is_written_in_place(site: Site, op: str) -> bool:
    """Return True if the text at a site says that it writes in place, or calls a module that may be built so."""
    found = form(site)
    if found is Form.CALL:
        return op.partition("::")[2].removesuffix("_") in ACTIVATIONS
    return found in (Form.AUGMENTED, Form.METHOD, Form.FLAG)


def written_name(site: Site) -> str | None:
    """What the text at a site says that it writes, such as "h"; None for the call of a module, which may have parts."""
    return None if form(site) is Form.CALL else dotted(target_of(site)) or None


def target_of(site: Site | None) -> ast.expr | None:
    """What is written, as an expression: `h` of `h += e`, `h[i]` of `h[i] = e`, `t` of `t.add_(x)`."""
    write = write_of(site)
    return write.target if write is not None else None


def words_at(site: Site | None) -> str:
    """The statement at a site on one line, without comments; empty where it is not known."""
    found = statement_of(site)
    return ast.unparse(found) if found is not None else ""


def is_rebindable(site: Site | None, *, refused: bool = False) -> bool:
    """Return True if the statement could bind a new tensor instead of writing into the old one.

    False for the variable of a `for` loop: the list still holds the old tensor. False for `y = t.add_(1)` too, which
    leaves the new values under both names; but if the write was `refused`, the program never had these values.
    """
    write = write_of(site)
    if write is None or not out_of_place(write):
        return False
    if isinstance(write.target, ast.Name) and write.target.id in bound_by_loop(write.file, write.node):
        return refused and not isinstance(write.statement, ast.Expr | ast.AugAssign)
    return refused or write.form is Form.FLAG or _binds_what_it_writes(write)


def _binds_what_it_writes(write: WriteSyntax) -> bool:
    """Return True if the statement only writes, or binds the result to the written name."""
    found = write.statement
    if isinstance(found, ast.Assign):
        same = len(found.targets) == 1 and dotted(found.targets[0]) == dotted(write.target)
        return same and write.call in (found.value, *chain(found.value))
    if isinstance(found, ast.Expr):
        return write.call in (found.value, *chain(found.value))
    return isinstance(found, ast.AugAssign)


def by_iteration(site: Site | None) -> bool:
    """Return True if the target is the variable of a `for` loop around it, or a part of that variable."""
    place, target = place_of(site), target_of(site)
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    return place is not None and isinstance(target, ast.Name) and target.id in bound_by_loop(place.file, place.node)


def fills_by_loop(site: Site | None) -> bool:
    """Return True for `h[t] = e` where a loop around it sets `t`: the loop fills one part after another."""
    place, target = place_of(site), target_of(site)
    if place is None or target is None:
        return False
    set_by = bound_by_loop(place.file, place.node)
    for loop in place.file.around(place.node):
        if isinstance(loop, ast.While):
            set_by |= {one.id for one in walk(loop, ast.Name) if isinstance(one.ctx, ast.Store)}
    return any(names_bound(one.slice) & set_by for one in walk(target, ast.Subscript))


def computes(site: Site | None) -> bool:
    """Return True if the statement makes a call that may give a tracked value."""
    write = write_of(site)
    calls = [one for one in ast.walk(write.statement) if isinstance(one, ast.Call)] if write is not None else []
    return any(not called(one).endswith("_") and not is_untracked(one) for one in calls)


def writes_part_of_result(site: Site | None) -> bool:
    """`h[i] = e` or `h[i] += e`, where `h` is read later on: a clone of `h` could take the write."""
    write = write_of(site)
    if write is None or not isinstance(write.statement, (ast.Assign, ast.AugAssign)):
        return False
    file, found = write.file, write.statement
    target = found.target if isinstance(found, ast.AugAssign) else found.targets[0]
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)) or file.own_lines(found) is None:
        return False
    return is_read_after(file, target.value.id, file.scope(found), found.end_lineno or found.lineno)


def is_applied(site: Site | None) -> bool:
    """`Function.apply(x)`: a custom Function, whose first argument could be a clone."""
    place = place_of(site)
    call = place.node if place is not None else None
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return called(call) == "apply" and isinstance(first, (ast.Name, ast.Attribute, ast.Subscript))
