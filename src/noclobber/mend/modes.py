"""Make tensors under `no_grad` instead of `inference_mode`.

Sound where the file uses the mode once: under `no_grad` the same values are computed, no gradient is recorded either,
and what is made may be saved for backward and written in place.
"""

from __future__ import annotations

import ast

from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Finding
from noclobber.model.source import Owner, owner_of
from noclobber.syntax.edits import replace
from noclobber.syntax.names import called
from noclobber.syntax.tree import file_at


def recorded(finding: Finding) -> Sound | None:
    """The one `torch.inference_mode()` of a file replaced."""
    if finding.code != "NC306":
        return None
    paths = list(dict.fromkeys(one.span.path for one in finding.labels if one.role != "inside"))
    file = file_at(paths[0]) if len(paths) == 1 and owner_of(paths[0]) is Owner.USER else None
    if file is None or file.text.count("inference_mode") != 1:
        return None
    for one in ast.walk(file.tree):
        plain = isinstance(one, ast.Call) and called(one) == "inference_mode" and not one.args and not one.keywords
        if plain and isinstance(one, ast.Call) and file.source(one.func) == "torch.inference_mode":
            return Sound(
                "use `no_grad` instead of `inference_mode`", (replace(file, one, "torch.no_grad()"),), Cure.MODE
            )
    return None
