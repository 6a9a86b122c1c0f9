"""What is computed from weights once and kept, computed anew at each use.

An `if` that fills an attribute, an item or a variable where it is empty loses its test; one that returns what is there
goes; a `cached_property` becomes a `property`, and so does what `__init__` computes of other attributes. Each forward
then reads the current weights.

Sound where the backward was seen to reach the older graph by such places alone, and nothing empties them but where they
begin, or changes what they hold: else the step may only have missed that. What is computed is one tensor, known to be
the same each time (repeating.py), of weights and what else is set once, and of the key that it is kept by. The file
averages no weights: that of a target may be meant as a constant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from noclobber.mend.change import Change, change
from noclobber.mend.order.repeating import repeats
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.source import Span
from noclobber.model.units import listed
from noclobber.syntax.edits import insert, remove, replace, unwrapped, whole_lines
from noclobber.syntax.names import (
    Name,
    attributes_set,
    called,
    indexed,
    is_declared,
    is_stored,
    last_name,
    mentions,
    names_in,
    names_used,
    only_target,
    own_names,
    targets,
    unindexed,
    uses,
)
from noclobber.syntax.tree import FUNCTION, File, Function, first_line, functions, last_line, walk
from noclobber.syntax.writes import is_average


class Kept(NamedTuple):
    """A place that is filled once: the last part of its name, the statements that compute its value, the names by which
    it is asked for, and the edits by which it is filled at each use."""

    file: File
    name: str
    rows: list[ast.stmt]
    asked: set[str]
    edits: tuple[Edit | None, ...]


def not_kept(scene: Scene) -> Iterator[Change]:
    """The places that carry an older graph to a backward, filled at each use."""
    event = scene.finding.event
    if not isinstance(event, (Clobber, Refusal)) or not event.carried or not (scene.is_freed or scene.reads_first()):
        return
    found = {one.name: _kept(scene, one.name) or _kept(scene, one.variable) for one in event.carried}
    kept = [one for one in found.values() if one is not None]
    if len(kept) < len(found):
        return
    is_sound = event.are_all_carried and not event.is_run_anew and all(_is_computed(scene, one) for one in kept)
    edits = dict.fromkeys(edit for one in kept for edit in one.edits)
    title = f"compute {listed([f'`{one}`' for one in found])} anew at each use"
    yield from change(title, edits, 1, is_sound=is_sound, way="anew")


def _kept(scene: Scene, state: str) -> Kept | None:
    """How the place of a state is filled once; None where that is not known, or more than one `if` fills it."""
    name = re.sub(r"(\[[^]]*\])+$", "", state).rpartition(".")[2]
    found = [one for file in scene.files for one in _filling(file, name)] if name else []
    if len(found) != 1:
        return None
    (one,) = found
    used = [(each, use) for each in scene.files for use in mentions(each, name)]
    others = [each.nearest(use, ast.stmt) for each, use in used if _is_filled(each, use)]
    if getattr(one.file.scope(one.rows[0]), "name", "") == "__init__" and not _is_a_value_alone(one, used):
        return None
    return one if all(row in one.rows or _empties(row) for row in others) else None


def _is_a_value_alone(kept: Kept, used: Sequence[tuple[File, Name]]) -> bool:
    """Return True if an attribute may become a property: one statement sets it, whatever `__init__` is given, nothing
    asks whether it is there, and nobody wants that tensor itself, for its `.grad` or a hook."""
    begin = kept.file.scope(kept.rows[0])
    above = [each.above[use] for each, use in used]
    itself = [one for one in above if isinstance(one, ast.Attribute) and ("grad" in one.attr or "hook" in one.attr)]
    asked = [one for each, _ in used for one in walk(each.tree, ast.Constant) if one.value == kept.name]
    stored = [use for each, use in used if is_stored(each, use)]
    given = [one for one in above if called(one) == "grad"]
    return len(stored) == 1 and not itself and not asked and not given and not next(walk(begin, ast.Return), None)


def _is_filled(file: File, use: ast.expr) -> bool:
    """Whether `self.kept`, or an item of it, is bound there, or a method is called that may change what it has."""
    use = indexed(file, use)
    above = file.above[use]
    is_changed = isinstance(above, ast.Attribute) and above.attr in ("setdefault", "update", "pop", "clear")
    return is_stored(file, use) or is_changed


def _empties(row: ast.AST | None) -> bool:
    """`self.kept = None`, `self.kept = {}`, `kept: Tensor | None = None`."""
    value = row.value if isinstance(row, (ast.Assign, ast.AnnAssign)) else None
    is_none = isinstance(value, ast.Constant) and value.value is None
    return is_none or (isinstance(value, ast.Dict) and not value.keys) or isinstance(row, ast.AnnAssign)


def _filling(file: File, name: str) -> Iterator[Kept]:
    """What fills a place of some name where it is empty."""
    for one in walk(file.tree, ast.If):
        is_plain = not one.orelse and not file.source(one).startswith("elif")
        is_empty = _asks(one.test, name) if is_plain else None
        if is_empty and _fills(one.body, name):
            yield Kept(file, name, one.body, names_in(one.test), unwrapped(file, one) or (None,))
        rows, given = file.block(one), one.body[0]
        below = rows[rows.index(one) + 1 :]
        returns = len(one.body) == 1 and isinstance(given, ast.Return) and _is_place(given.value, name)
        if is_empty is False and returns and _fills(below, name):
            yield Kept(file, name, below, names_in(one.test), (whole_lines(file, first_line(one), last_line(one)),))
    for function in functions(file.tree):
        cached = [one for one in function.decorator_list if last_name(one) == "cached_property"]
        if function.name == name and cached:
            yield Kept(file, name, function.body, set(), (replace(file, cached[0], "property"),))
    for held in attributes_set(file, name):
        row, begin = file.statement(held), file.scope(held)
        if not isinstance(row, ast.Assign) or only_target(row) is not held or _empties(row):
            continue
        is_begun = isinstance(begin, FUNCTION) and begin.name == "__init__" and row in begin.body
        if isinstance(begin, FUNCTION) and is_begun and not names_in(row.value) & own_names(begin) - {"self"}:
            yield Kept(file, name, [row], set(), _as_property(file, begin, row, name))


def _as_property(file: File, begin: Function, row: ast.Assign, name: str) -> tuple[Edit | None, ...]:
    blanks = file.indent(begin)
    lines = ("", f"{blanks}@property", f"{blanks}def {name}(self):", f"{blanks}    return {file.source(row.value)}")
    end = file.end_of_line(last_line(begin))
    if file.own_lines(row) is None or len(begin.body) < 2:
        return (None,)
    if row is begin.body[-1]:  # it stands where the property comes
        return (Edit(Span(file.path, row.lineno, 1, *end), "\n".join(lines)),)
    return remove(file, row), insert(file, *end, "\n".join(("", *lines)))


def _fills(rows: list[ast.stmt], name: str) -> bool:
    is_plain = all(isinstance(one, (ast.Assign, ast.Return)) for one in rows)
    return is_plain and any(_is_place(each, name) for one in rows for each in targets(one))


def _is_place(node: ast.expr | None, name: str) -> bool:
    return node is not None and last_name(unindexed(node)) == name


def _asks(test: ast.expr, name: str) -> bool | None:
    """Return True for `self.kept is None`, `key not in kept` and `not hasattr(self, "kept")`, False for the opposite,
    None for any other test."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            asked = _asks(inner, name)
            return None if asked is None else not asked
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            return isinstance(op, ast.Is) if _is_place(left, name) else None
        case ast.Compare(ops=[ast.In() | ast.NotIn() as op], comparators=[held]):
            return isinstance(op, ast.NotIn) if _is_place(held, name) else None
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=value)]) if value == name:
            return False
    return None


def _is_computed(scene: Scene, kept: Kept) -> bool:
    """Return True if a place may be filled at each use, as the head of this file says."""
    file, name, rows = kept.file, kept.name, kept.rows
    bound = [each for one in rows for each in targets(one)]
    given = [one.value for one in rows if isinstance(one, ast.Return)]
    made = [one.value for one in rows if isinstance(one, ast.Assign)] or [one for one in given if one is not None]
    own = {one.id for one in bound if isinstance(one, ast.Name)} - {name}
    is_filled = len(bound) == len(own) + 1 and all(_is_place(one, name) for one in given)
    return (
        (is_filled or (not bound and len(rows) == 1))
        and all(_is_made_alike(file, one, own | kept.asked, name) for one in made)
        and not any(_is_changed(each, kept) for each in scene.files)
        and repeats(scene, file, rows, ())
    )


def _is_made_alike(file: File, value: ast.expr, own: set[str], name: str) -> bool:
    """Return True if a value is one tensor, made of what a function has for the value itself, and of what is set once:
    by the file, or where an object begins."""
    is_whole = isinstance(value, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Subscript))
    used = [one for one in walk(value, ast.Name) if one.id not in own | {"self"}]
    set_ = [each for one in walk(value, ast.Attribute) for each in attributes_set(file, one.attr)]
    return (
        is_whole
        and name not in names_used(value)
        and all(_is_set_once(file, one) for one in used)
        and all(getattr(file.scope(one), "name", "") == "__init__" for one in set_)
    )


def _is_set_once(file: File, use: ast.Name) -> bool:
    """Whether a name stands for one thing: for what a file binds at most once, and in no loop, and no function does."""
    bound = uses(file.tree, use.id, ast.Store)
    scopes = [one for one in file.around(use) if isinstance(one, (*FUNCTION, ast.Lambda))]
    is_global = not any(use.id in own_names(one) for one in scopes)
    declared = any(is_declared(one, use.id) for one in functions(file.tree))
    return is_global and not declared and len(bound) <= 1 and not any(any(file.loops(one)) for one in bound)


def _is_changed(file: File, kept: Kept) -> bool:
    """Return True if a file may empty a place, or write to what it has, or updates an average of weights, which may be
    those that the value is made of."""
    used = mentions(file, kept.name)
    filled = [one for one in used if _is_filled(file, one) and file.nearest(one, ast.stmt) not in kept.rows]
    methods = [above.attr for one in used if isinstance(above := file.above[one], ast.Attribute) and above.value is one]
    told = [one for one in walk(file.tree, ast.Constant) if one.value == kept.name]
    return (
        any(getattr(file.scope(one), "name", "__init__") != "__init__" for one in filled)
        or any(one.endswith("_") or one in ("append", "extend", "insert", "add") for one in methods)
        or any(called(file.above[one]) != "hasattr" for one in told)
        or any(is_average(one) for one in walk(file.tree, ast.stmt))
    )
