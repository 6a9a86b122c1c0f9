"""NC302 leaf-view-write: in-place write to a view of a leaf tensor that requires grad

What happens
    A slice, a row or another view of a parameter, or of a tensor made with `requires_grad=True`, is written in
    place while gradients are recorded. `w[0] = 1` is such a write. PyTorch refuses: "a view of a leaf Variable that
    requires grad is being used in an in-place operation".

Why
    A view shares its bytes with the tensor it was taken from, so the write would change the leaf. See NC301 for why
    a leaf may not become the result of an operation.

Example
    import torch

    bias = torch.zeros(6, requires_grad=True)
    per_anchor = bias.view(2, 3)
    per_anchor[:, 0] -= 4.6

Instead
    import torch

    bias = torch.zeros(6, requires_grad=True)
    per_anchor = bias.view(2, 3)
    with torch.no_grad():
        per_anchor[:, 0] -= 4.6

Notes
    Put code that sets up a parameter under `torch.no_grad()`. A write that belongs to the forward needs a clone,
    such as image features put between word embeddings: write `embeds = embeds.clone()` first, and the gradient is
    right. So does a write to rows of what `expand` gave: under `torch.no_grad()` it would change all rows.
    `reshape`, `flatten` and `contiguous` give a view wherever they can.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.refusing import APPLIED, Text, blamed, named, writes_it
from noclobber.rules.shared.writetext import is_applied, words_at, write_of, writes_part_of_result

_SURGERY = re.compile(r"init|reset|bias|weight|prior|prune|clip|mask", re.IGNORECASE)
_GUARD = Suggestion("set the values inside `with torch.no_grad():`", cure=Cure.NO_GRAD)
_CLONE = Suggestion("write into a clone, so that the gradient flows through", cure=Cure.CLONE_FIRST)


def _headline(refusal: Refusal) -> str:
    if refusal.tensor.kind == "parameter" and refusal.tensor.name:
        return f"in-place write to a view of {named(refusal, 'a leaf tensor that requires grad')}"
    return f"in-place write to {named(refusal, 'a view of a leaf tensor that requires grad')}"


def _helps(refusal: Refusal) -> list[Suggestion]:
    site = blamed(refusal)
    if is_applied(refusal.site):
        return [Suggestion("give the Function a clone", cure=Cure.CLONE_ARGUMENT)]
    if refusal.expanded:
        return [_CLONE]
    if refusal.tensor.kind == "parameter" and not refusal.carries_gradient:
        return [_GUARD]
    # Of a line, or of a function, that prepares weights.
    surgery = site is not None and _SURGERY.search(f"{site.code.co_name} {words_at(site)}") is not None
    is_meant = refusal.carries_gradient or (writes_part_of_result(write_of(site)) and not surgery)
    first, other = (_CLONE, _GUARD) if is_meant else (_GUARD, _CLONE)
    return [first, replace(other, message=f"or {other.message}")]


TEXTS = (
    Text(
        [
            "a view of a leaf Variable that requires grad is being used in an in-place operation.",
            "a view of a leaf Variable that requires grad has been used in an in-place operation.",
        ],
        _headline,
        _helps,
        "a view shares its bytes with the leaf, and the gradient of the leaf belongs to its value in forward",
        told=partial(writes_it, target="through the view"),
        surfaced=lambda refusal: APPLIED if is_applied(refusal.site) else "",
    ),
)
