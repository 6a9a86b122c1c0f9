"""Views that PyTorch refuses to go on with, as what they are made of is written: made below the write instead.

Sound where between both stands nothing but writes that leave the shape, where none comes later, and where one statement
makes all views of that kind, by numbers that do not change. The writes were never made, and the views show them either
way, so the values stay what they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from noclobber.mend.change import Change
from noclobber.mend.holders.holding import writes_through
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure
from noclobber.model.seen.operators import SPLITS, TWIN_IS_VIEW
from noclobber.syntax.edits import insert, lines_of, text_of_lines, whole_lines
from noclobber.syntax.names import called, calls, dotted, is_own, names_in, names_used, owner, values
from noclobber.syntax.tree import File, ends, last_line, starts, within


def views_later(scene: Scene) -> Iterator[Change]:
    """`a, b = x.split(n)` moved below the write to `x` that PyTorch refuses because of these views."""
    for write in scene.writes() if scene.code == "NC303" else ():
        file, scope, name = write.file, write.file.scope(write.statement), write.name
        writing = list(writes_through(file, scope, name)) if name.isidentifier() else []
        split = [one for one in within(scope, ast.Call) if called(one) in SPLITS and name in map(dotted, _given(one))]
        made = file.statement(split[0]) if len(split) == 1 else None
        if not isinstance(made, ast.Assign) or made.value is not split[0] or write.statement not in writing:
            continue
        rows, first, last = file.together(made, write.statement)
        between = rows[first + 1 : last + 1]
        if not between or rows[first] is not made or not all(_only_writes(one, writing) for one in between):
            continue
        if any(starts(one) > ends(rows[last]) for one in writing) or not _are_views(file, made, between):
            continue
        lines = lines_of(file, made)
        put = insert(file, *file.end_of_line(last_line(rows[last])), "\n" + text_of_lines(file, *lines))
        title = f"make the views of `{name}` after the write"
        yield Change(title, (whole_lines(file, *lines), put), 1, Cure.LATER, is_sound=True)


def _given(call: ast.Call) -> list[ast.expr]:
    return [one for one in (owner(call), *values(call)) if one is not None]


def _only_writes(row: ast.stmt, writing: Sequence[ast.stmt]) -> bool:
    """Return True if a statement is one of some writes that leave the shape, or an `if` around nothing but these."""
    if isinstance(row, ast.If):
        return all(_only_writes(one, writing) for one in (*row.body, *row.orelse))
    return row in writing and not calls(row, *TWIN_IS_VIEW)


def _are_views(file: File, made: ast.Assign, between: Sequence[ast.stmt]) -> bool:
    """Return True if a statement binds plain names of its function to views, by numbers that are the same below the
    statements that follow."""
    target, scope = made.targets[0], file.scope(made)
    if not isinstance(target, ast.Tuple) or not all(isinstance(one, ast.Name) for one in target.elts):
        return False
    if any(isinstance(one, ast.Call) for each in _given(made.value)[1:] for one in ast.walk(each)):  # type: ignore[arg-type]
        return False
    used = set[str]().union(*map(names_used, between))
    sizes = set[str]().union(*map(names_used, _given(made.value)[1:])) - {"self"}  # type: ignore[arg-type]
    views = names_in(target)
    is_whole = all(file.own_lines(one) is not None for one in (made, between[-1]))
    return is_whole and not used & (views | sizes) and all(is_own(scope, one) for one in views)
