"""Make tensors under `no_grad` instead of `inference_mode`.

Sound where the file uses the mode once: under `no_grad` the same values are computed, no gradient is recorded either,
and what is made may be saved for backward and written in place. Tried is each place where a file uses it, then all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure, Edit
from noclobber.syntax.edits import replace
from noclobber.syntax.names import attributes, called_by, dotted, is_true, last_name, mentions
from noclobber.syntax.tree import File, walk


def recorded(scene: Scene) -> Iterator[Change]:
    """`inference_mode` as `no_grad`: each place alone, then all."""
    files = scene.files if scene.code == "NC306" else []
    edits = [edit for file in files for edit in _as_no_grad(file)]
    uses = [(file, one) for file in files for one in mentions(file, "inference_mode")]
    imported = [one for file in files for one in walk(file.tree, ast.alias) if one.name == "inference_mode"]
    is_sound = len(uses) == len(edits) == 1 and not imported
    is_sound &= all(dotted(one) == "torch.inference_mode" for _, one in uses)
    is_sound &= all(isinstance(file.above[one], ast.Call) for file, one in uses)
    for some in dict.fromkeys([*((one,) for one in edits), tuple(edits)]):
        title = "use `no_grad` instead of `inference_mode`"
        yield from change(title, some, 1 if len(some) == 1 else 2, Cure.MODE, is_sound)


def _as_no_grad(file: File) -> Iterator[Edit]:
    """Each `torch.inference_mode`, called or not, as `torch.no_grad()`."""
    for one in attributes(file.tree, "inference_mode"):
        owner, call = dotted(one).removesuffix(last_name(one)), called_by(file, one)
        if call is None or (all(map(is_true, call.args)) and not call.keywords):
            yield replace(file, call or one, f"{owner}no_grad()")
