"""Custom Functions: declare the write by `mark_dirty`. They, and operators of the program's own, may write to a new
tensor instead.

Sound where `forward` gives back the input that it writes, and nothing else, and saves it only below the write: autograd
then goes on with it as it is in place everywhere. The input is in the graph and no leaf, by what was seen at the only
place where the file applies the Function; nothing calls its `forward` itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.holders.holding import keeps_nothing
from noclobber.mend.scene import Scene
from noclobber.model.seen.silent import Undeclared
from noclobber.syntax.edits import before, cloned_before, remove, replace
from noclobber.syntax.names import (
    attributes,
    called,
    calls,
    dotted,
    is_stored,
    last_name,
    owner,
    parameters,
    returned,
    uses,
)
from noclobber.syntax.tree import FUNCTION, Function, starts, walk
from noclobber.syntax.writes import WriteSyntax, out_of_place


def marked_dirty(scene: Scene) -> Iterator[Change]:
    """`ctx.mark_dirty(x)` before the write in a `forward(ctx, x)`; or no write at all, and a new tensor."""
    event = scene.finding.event
    is_operator = isinstance(event, Undeclared) and event.is_operator
    who = "operator" if is_operator else "Function"
    for write in scene.writes() if scene.is_refused or isinstance(event, Undeclared) else ():
        file, scope = write.file, write.file.scope(write.statement)
        own = parameters(scope)
        if not isinstance(scope, FUNCTION) or not own or write.name not in own or not (is_operator or own[0] == "ctx"):
            continue
        marks = calls(scope, "mark_dirty")
        if not (marks or is_operator):
            edit = before(file, write.statement, f"{own[0]}.mark_dirty({write.name})")
            cloned = [one for one in returned(scope) if called(one) == "clone" and dotted(owner(one)) == write.name]
            given = [replace(file, one, write.name) for one in cloned]
            also = f", and return `{write.name}`" * bool(given)
            title = f"declare the write: `mark_dirty({write.name})`{also}"
            is_sound = isinstance(event, Undeclared) and not event.beside and _gives_it_back(write, scope)
            yield from change(title, [edit, *given], 2, is_sound=is_sound)
        if edits := out_of_place(write):
            gone = [remove(file, one) for one in marks]
            yield from change(f"let the {who} make a new tensor", [*edits, *gone], 3)
        if not marks:
            copied = cloned_before(file, write.statement, write.name)
            yield from change(f"let the {who} write into a clone", [copied], 3)


def _gives_it_back(write: WriteSyntax, forward: Function) -> bool:
    file, around, name = write.file, write.file.class_of(forward), write.name
    back, used = list(walk(forward, ast.Return)), uses(forward, name)
    applied = [one for one in calls(file.tree, "apply") if around is not None and last_name(owner(one)) == around.name]
    if len(applied) != 1 or attributes(file.tree, "forward") or not back:
        return False
    is_saved = any(starts(one) < starts(write.statement) and not keeps_nothing(file, one) for one in used)
    is_bound = any(is_stored(file, one) and file.statement(one) is not write.statement for one in used)
    return not is_saved and not is_bound and all(dotted(one.value) == name for one in back)
