"""Write in place, where a hint says that nothing keeps what would be overwritten."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.flags import modules_called, names_of_module
from noclobber.mend.scene import Scene
from noclobber.model.finding import Edit
from noclobber.model.hints import Opportunity
from noclobber.syntax.in_place import in_place, with_flag
from noclobber.syntax.names import called
from noclobber.syntax.tree import File, Place, walk
from noclobber.syntax.writes import FLAG_AT, is_flagged


def written_in_place(scene: Scene) -> Iterator[Change]:
    """The operator of a hint as one that writes, or the module that calls it with its flag."""
    hint = scene.finding.event
    if not isinstance(hint, Opportunity):
        return
    for place in scene.places("write")[:1]:
        if hint.spelling.how == "module":
            yield from _flagged(scene, place, hint.spelling.name)
            continue
        for one in in_place(place, hint.op, hint.argument, hint.spelling, numbers=hint.numbers):
            yield Change("write in place", (one.edit,), 1)


def _flagged(scene: Scene, place: Place, name: str) -> Iterator[Change]:
    """Builders of the modules of a class that are called at a place, with the flag: those of that name, then all."""
    built = [(file, one) for file in scene.files() for one in walk(file.tree, ast.Call) if called(one) == name]
    names = modules_called(place)
    own = [(file, one) for file, one in built if names_of_module(file, one) & names]
    for some in dict.fromkeys(tuple(one) for one in (own, built)):
        edits = tuple(edit for file, one in some if (edit := _with_flag(file, one)) is not None)
        if edits:
            more = f" ({len(edits)} of them)" if len(edits) > 1 else ""
            yield Change(f"build this module with `inplace=True`{more}", edits, len(edits))


def _with_flag(file: File, call: ast.Call) -> Edit | None:
    most = FLAG_AT.get(called(call), len(call.args))
    return with_flag(file, call) if len(call.args) <= most and not is_flagged(call) else None
