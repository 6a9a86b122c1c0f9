"""What rules read from the text of a write: its form, its target, whether a new tensor could replace it."""

from __future__ import annotations

import ast

from noclobber.model.seen.operators import ACTIVATIONS
from noclobber.model.source import Site
from noclobber.syntax.names import bound_by_loop, called, dotted, is_read_below, is_untracked, names_in, names_stored
from noclobber.syntax.tree import File, Place, place_of, statement_of, walk
from noclobber.syntax.writes import Form, WriteSyntax, chain, out_of_place, write_at


def write_of(site: Site | None) -> WriteSyntax:
    """The write at a site; one without a target and without a form where the source is missing."""
    return write_at(place_of(site) or _NOWHERE)


_NOTHING = File("", "pass", ast.parse("pass"), {}, (0,))
_NOWHERE = Place(_NOTHING, _NOTHING.tree.body[0])


def is_written_in_place(site: Site, op: str) -> bool:
    """Return True if the text at a site says that it writes in place, or calls a module that may be built so."""
    form = write_of(site).form
    if form is Form.CALL:
        return op.partition("::")[2].removesuffix("_") in ACTIVATIONS
    return form in (Form.AUGMENTED, Form.METHOD, Form.FLAG)


def written_name(site: Site) -> str | None:
    """What the text at a site says that it writes, such as "h"; None for the call of a module, which may have parts."""
    write = write_of(site)
    return None if write.form is Form.CALL else dotted(write.target) or None


def passing_through(name: str, write: WriteSyntax, *, aliased: bool) -> str:
    """Say what lets the gradient of a tensor pass a write unchanged. Another name may be that of the `aliased` tensor
    alone, and then nothing is to be assigned to it."""
    through = write.target is not None and ast.unparse(write.target).startswith((f"{name}.data", f"{name}.detach()"))
    if (aliased and not through) or not name.replace(".", "_").isidentifier() or name.endswith(".data"):
        return "add the difference as a constant"
    return f"write `{name} = {name} + (new - {name}).detach()`"


def words_at(site: Site | None) -> str:
    """The statement at a site on one line, without comments; empty where it is not known."""
    found = statement_of(site)
    return ast.unparse(found) if found is not None else ""


def is_rebindable(write: WriteSyntax, *, refused: bool = False) -> bool:
    """Return True if the statement could bind a new tensor instead of writing into the old one.

    False for the variable of a `for` loop: the list still holds the old tensor. False for `y = t.add_(1)` too, which
    leaves the new values under both names; but if the write was `refused`, the program never had these values.
    """
    if not out_of_place(write):
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


def by_iteration(write: WriteSyntax) -> bool:
    """Return True if the target is the variable of a `for` loop around it, or a part of that variable."""
    target = write.target
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    return isinstance(target, ast.Name) and target.id in bound_by_loop(write.file, write.node)


def fills_by_loop(write: WriteSyntax) -> bool:
    """Return True for `h[t] = e` where a loop around it sets `t`: the loop fills one part after another."""
    set_by = bound_by_loop(write.file, write.node)
    for loop in write.file.around(write.node):
        if isinstance(loop, ast.While):
            set_by |= names_stored(loop)
    indexed = walk(write.target, ast.Subscript) if write.target is not None else ()
    return any(names_in(one.slice) & set_by for one in indexed)


def computes(write: WriteSyntax) -> bool:
    """Return True if the statement makes a call that may give a tracked value."""
    calls = walk(write.statement, ast.Call)
    return any(not called(one).endswith("_") and not is_untracked(one) for one in calls)


def writes_part_of_result(write: WriteSyntax) -> bool:
    """`h[i] = e` or `h[i] += e`, where `h` is read later on: a clone of `h` could take the write."""
    file, found, target = write.file, write.statement, write.target
    if not isinstance(found, (ast.Assign, ast.AugAssign)) or file.own_lines(found) is None:
        return False
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return False
    return is_read_below(file, target.value.id, found)


def is_applied(site: Site | None) -> bool:
    """`Function.apply(x)`: a custom Function, whose first argument could be a clone."""
    call = write_of(site).node
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return called(call) == "apply" and isinstance(first, (ast.Name, ast.Attribute, ast.Subscript))
