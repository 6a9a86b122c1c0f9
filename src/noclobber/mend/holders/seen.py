"""Decides from what was seen at a write whether only the written name is read again.

The record of a write has the names under which the program held the written bytes (`Write.holders`), in all frames.
The source says which of them are read after the write.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Sequence

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Holder, Refusal, Write, without_indexes
from noclobber.model.source import Owner, owner_of
from noclobber.syntax.assigning import begins_anew
from noclobber.syntax.names import binds, called_by, is_own, is_stored, names_in, uses, uses_in
from noclobber.syntax.tree import COMPREHENSION, FOR, WITH, File, Loop, ends, place_of, starts, walk

Holders = Sequence[Holder]
_LOOKING_AROUND = ("locals", "vars", "globals")
_RUNNING_TEXT = ("eval", "exec")
"""Functions by which a variable may be read without its name: the first ones without an argument."""


def holders_at(finding: Finding, file: File, write: ast.stmt) -> Holders | None:
    """Return who held the bytes that a statement wrote; None if that was not seen."""
    found = _looks(finding, file, write)
    if not found or None in found:
        return None
    return tuple(dict.fromkeys(holder for one in found for holder in one or ()))


def _looks(finding: Finding, file: File, write: ast.stmt) -> list[Holders | None]:
    events = [finding.event] if isinstance(finding.event, Refusal) else finding.writes
    return [one.holders for one in events if is_of(one, file, write)]


def are_over(file: File, name: str, write: ast.stmt, holders: Holders) -> bool:
    """Return True if a name, attribute or item held the bytes at a write, and no other holder is read after it."""
    wanted = without_indexes(name)
    own = [one for one in holders if is_of(one, file, write) and without_indexes(one.name) == wanted]
    return own != [] and all(one in own or is_spent(one, holders) for one in holders)


def hold_alone(names: Container[str], file: File, write: ast.stmt, holders: Holders) -> bool:
    """Return True if only some variables of the function that writes held the bytes, and what is read no more."""
    return all((is_of(one, file, write) and one.name in names) or is_spent(one, holders) for one in holders)


def is_spent(holder: Holder, holders: Holders) -> bool:
    """Return True for a variable of the program that is not read again after the write at which it was seen.

    A variable of the file has no place, but for a second holder where the file itself is running.
    """
    place = place_of(holder.site)
    if holder.site is None:
        places = (place_of(one.site) for one in holders if one.name == holder.name)
        return any(one is not None and isinstance(one.file.scope(one.node), ast.Module) for one in places)
    row = place.statement if place is not None else None
    if place is None or row is None or owner_of(place.file.path) is not Owner.USER:
        return False
    return holder.name.isidentifier() and is_over(place.file, holder.name, row, place.node)


def is_read_elsewhere(finding: Finding, file: File, write: ast.stmt) -> bool:
    """Return True if a variable of another function was seen to hold the bytes, and is read again. A run of a few turns
    does not show what comes of that: a number may be kept for the end, or be printed in another turn."""
    holders = [holder for one in _looks(finding, file, write) for holder in one or ()]
    others = (one for one in holders if one.site is not None and not is_of(one, file, write))
    return any(one.name.isidentifier() and not is_spent(one, holders) for one in others)


def is_of(seen: Holder | Write | Refusal, file: File, write: ast.stmt) -> bool:
    """Return True if a write was seen at a statement, or a holder is a variable of the function that writes there."""
    place = place_of(seen.site)
    return place is not None and place.file is file and place.statement is write


def node_at(file: File, write: ast.stmt, holders: Holders) -> ast.AST | None:
    """Return the node of a statement that writes, as the holders in its function tell it."""
    places = (place_of(one.site) for one in holders if is_of(one, file, write))
    return next((one.node for one in places if one is not None), None)


def is_over(file: File, name: str, row: ast.stmt, at: ast.AST | None = None) -> bool:
    """Return True if no code reads a variable after a statement writes, before it is bound to something else.

    `at` is the node of the statement that writes, or calls what does. Where it is not known, the statement may give the
    variable once, to what it calls.
    """
    scope = file.scope(row)
    if any(map(looks_around, walk(scope, ast.Call))) or not is_own(scope, name):
        return False
    read = uses_in(row, name, ast.Load)
    if any(is_in_comprehension(file, one) for one in read):
        return False
    if any(one.target.id == name for one in walk(row, ast.NamedExpr)):
        return False  # it may be bound before the write
    if len(read) > 1 if at is None else any(_is_read_later(file, row, one, at) for one in read):
        return False
    if any(name in names_in(one) for one in _given_back(file, row)):
        return False  # a stack holds it, where Python 3.14 does not count
    if binds(row, name):
        return True
    reads = [one for one in uses(scope, name) if not is_stored(file, one) and not _asks_for_shape(file, one)]
    rebound = _bound_anew(file, name, row)
    if any(starts(one) >= ends(row) and (rebound is None or starts(one) < ends(rebound)) for one in reads):
        return False
    fresh: Loop | None = None
    for loop in file.loops(row):
        again = [one for one in reads if _is_in(one, loop) and not (fresh is not None and _is_in(one, fresh))]
        if again and not begins_anew(loop, name):
            return False
        fresh = loop if begins_anew(loop, name) else fresh
    return True


def _bound_anew(file: File, name: str, row: ast.stmt) -> ast.stmt | None:
    """The statement below another one in its block that binds a name anew, whatever happens in between."""
    rows, scope = file.block(row), file.scope(row)
    below = rows[rows.index(row) + 1 :]
    at = next((n for n, one in enumerate(below) if isinstance(one, ast.Assign) and binds(one, name)), -1)
    leaving = any(next(walk(one, *_LEAVING), None) for one in (row, *below[: at + 1]))
    held = any(isinstance(one, (ast.Try, *WITH)) and file.scope(one) is scope for one in file.around(row))
    return None if at < 0 or leaving or held else below[at]


_LEAVING = (
    ast.Assert, ast.Await, ast.Break, ast.Continue, ast.Raise, ast.Return, ast.Yield, ast.YieldFrom,
)  # fmt: skip


def _given_back(file: File, row: ast.stmt) -> Iterator[ast.Return]:
    """The statements that return a value while a statement of a `finally` is still to run."""
    for one in file.around(row):
        if isinstance(one, ast.Try) and row.lineno >= getattr(
            next(iter(one.finalbody), None), "lineno", row.lineno + 1
        ):
            yield from (each for each in walk(one, ast.Return) if each.lineno < one.finalbody[0].lineno)


def is_in_comprehension(file: File, use: ast.Name) -> bool:
    """Return True if each turn of a comprehension uses what a name was bound to before it."""
    turns = (one for one in file.around(use) if isinstance(one, COMPREHENSION))
    bound = ((one.generators[0].iter, [each.target for each in one.generators]) for one in turns)
    return any(use not in ast.walk(once) and use.id not in set[str]().union(*map(names_in, new)) for once, new in bound)


def _asks_for_shape(file: File, name: ast.Name) -> bool:
    """Return True for `h.shape` and `h.size(0)`, which a write of values leaves what they are."""
    above = file.above[name]
    of_shape = ("size", "dim", "numel") if called_by(file, above) else ("shape", "dtype", "device", "ndim")
    return isinstance(above, ast.Attribute) and above.attr in of_shape


def looks_around(call: ast.Call) -> bool:
    """Return True for `locals()` and for `eval(text)`, but not for `model.eval()`."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return name in _RUNNING_TEXT or (name in _LOOKING_AROUND and not call.args)


def _is_read_later(file: File, row: ast.stmt, use: ast.Name, at: ast.AST) -> bool:
    """Return True if a statement evaluates a name after a node of its own has written."""
    if not isinstance(at, ast.expr):
        return not isinstance(at, ast.AugAssign)  # else the columns are not known
    around, others = [at, *file.around(at)], [use, *file.around(use)]
    if isinstance(row, ast.Assign) and (row.value in around) is not (row.value in others):
        return row.value in around  # the targets come last
    chosen = (one for one in around if isinstance(one, ast.IfExp) and one.test in around)
    return starts(use) >= ends(at) or any(one.body in others for one in chosen)


def _is_in(one: ast.expr, loop: Loop) -> bool:
    """Return True if each turn of a loop reads a name; what a `for` goes through is read before."""
    return starts(loop.body[0] if isinstance(loop, FOR) else loop) <= starts(one) < ends(loop)
