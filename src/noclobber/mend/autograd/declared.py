"""Custom Functions: declare the write by `mark_dirty`.

Sound where `forward` gives back the input that it writes, and nothing else: autograd then goes on with it as it is in
place everywhere. The input is in the graph and no leaf, by what was seen, and a save of it would have been found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.scene import Scene
from noclobber.model.seen.silent import Undeclared
from noclobber.syntax.edits import before, cloned_before, remove, replace
from noclobber.syntax.names import called, calls, dotted, owner, parameters, returned
from noclobber.syntax.tree import FUNCTION, walk
from noclobber.syntax.writes import out_of_place


def marked_dirty(scene: Scene) -> Iterator[Change]:
    """`ctx.mark_dirty(x)` before the write in a `forward(ctx, x)`; or no write at all, and a new tensor."""
    event = scene.finding.event
    for write in scene.writes() if scene.is_refused or isinstance(event, Undeclared) else ():
        file, scope = write.file, write.file.scope(write.statement)
        own = parameters(scope)
        if not isinstance(scope, FUNCTION) or not own or write.name not in own or own[0] != "ctx":
            continue
        marks = calls(scope, "mark_dirty")
        if not marks:
            edit = before(file, write.statement, f"{own[0]}.mark_dirty({write.name})")
            cloned = [one for one in returned(scope) if called(one) == "clone" and dotted(owner(one)) == write.name]
            given = [replace(file, one, write.name) for one in cloned]
            also = f", and return `{write.name}`" * bool(given)
            title, back = f"declare the write: `mark_dirty({write.name})`{also}", list(walk(scope, ast.Return))
            is_sound = isinstance(event, Undeclared) and not event.beside and len(back) > 0
            is_sound &= all(isinstance(one.value, ast.Name) and one.value.id == write.name for one in back)
            yield from change(title, [edit, *given], 2, is_sound=is_sound)
        if edits := out_of_place(write):
            gone = [remove(file, one) for one in marks]
            yield from change("let the Function make a new tensor", [*edits, *gone], 3)
        if not marks:
            copied = cloned_before(file, write.statement, write.name)
            yield from change("let the Function write into a clone", [copied], 3)
