"""Make tensors under `no_grad` instead of `inference_mode`.

Sound where the file uses the mode once: under `no_grad` the same values are computed, no gradient is recorded either,
and what is made may be saved for backward and written in place. `fix` tries each place where a file uses it, then all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Edit, Finding
from noclobber.model.source import Owner, owner_of
from noclobber.syntax.edits import replace
from noclobber.syntax.names import dotted, last_name
from noclobber.syntax.tree import File, file_at, walk

_TITLE = "use `no_grad` instead of `inference_mode`"


def recorded(finding: Finding) -> Sound | None:
    """The one `torch.inference_mode()` of a file replaced."""
    if finding.code != "NC306":
        return None
    paths = list(dict.fromkeys(one.span.path for one in finding.labels if one.role != "inside"))
    file = file_at(paths[0]) if len(paths) == 1 and owner_of(paths[0]) is Owner.USER else None
    if file is None or file.text.count("inference_mode") != 1:
        return None
    edits = tuple(_as_no_grad(file))
    is_plain = bool(edits) and "torch.inference_mode()" in file.text
    return Sound(_TITLE, edits, Cure.MODE) if is_plain else None


def no_grad_instead(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`inference_mode` as `no_grad`: each place alone, then all. Values stay, and the tensors are ordinary ones."""
    edits = [edit for file in scene.files() for edit in _as_no_grad(file)]
    for some in dict.fromkeys([*((one,) for one in edits), tuple(edits)]):
        if some:
            yield Candidate(_TITLE, some, cost if len(some) == 1 else cost + 1)


def _as_no_grad(file: File) -> Iterator[Edit]:
    """Each `torch.inference_mode`, called or not, as `torch.no_grad()`."""
    for one in walk(file.tree, ast.Attribute):
        if one.attr != "inference_mode":
            continue
        call = file.above[one]
        if isinstance(call, ast.Call) and call.func is one:
            plain = all(isinstance(each, ast.Constant) and each.value is True for each in call.args)
            if plain and not call.keywords:
                yield replace(file, call, f"{_owner(one)}no_grad()")
        else:
            yield replace(file, one, f"{_owner(one)}no_grad()")


def _owner(mode: ast.Attribute) -> str:
    return dotted(mode).removesuffix(last_name(mode))
