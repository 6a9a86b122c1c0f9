"""What the rule that made the finding suggests itself, where its suggestions carry edits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from noclobber.fix.candidates.finding_source import Scene
from noclobber.fix.candidates.out_of_place import dropped
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit

_GUARD = "with torch.no_grad():"


def suggested(scene: Scene, cost: int = 0) -> Iterator[Candidate]:
    """The suggestions with edits, in their order."""
    for number, one in enumerate(scene.finding.suggestions):
        if one.edits:
            title = one.message.partition("; ")[0].partition(" (")[0].removeprefix("or ").removeprefix("and ")
            yield Candidate(title, tuple(_as_written(scene, edit) for edit in one.edits), cost + number)


def _as_written(scene: Scene, edit: Edit) -> Edit:
    """An edit as one would write it who sees the whole file."""
    return _without_flag(scene, _as_deep(scene, edit))


def _without_flag(scene: Scene, edit: Edit) -> Edit:
    """`inplace=True` taken out, where a rule makes it `inplace=False`."""
    file = scene.file(edit.span.path) if edit.replacement == "False" else None
    arg = file.around(file.at(edit.span), cst.Arg) if file is not None else None
    call = file.around(arg, cst.Call) if file is not None and arg is not None else None
    if file is None or arg is None or call is None or arg.keyword is None or arg.keyword.value != "inplace":
        return edit
    return dropped(file, call, arg) or edit


def _as_deep(scene: Scene, edit: Edit) -> Edit:
    """A guarded statement as deep as the file indents its blocks; a rule sees one line and takes four blanks."""
    file = scene.file(edit.span.path)
    head, _, body = edit.replacement.partition("\n")
    if file is None or head != _GUARD:
        return edit
    blanks = body[: len(body) - len(body.lstrip())]
    deeper = blanks.removesuffix("    ") + file.module.default_indent
    return replace(edit, replacement=f"{head}\n{deeper}{body.lstrip()}")
