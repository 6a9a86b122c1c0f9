"""NC399 other-refusal: PyTorch refuses an in-place operation for a reason that has no other page

What happens
    An in-place operation, a saved tensor, a view or a version counter reaches a limit of PyTorch: `detach_` on a
    view ("Can't detach views in-place"), `resize_` on a tensor that requires grad, an in-place activation with a
    negative slope, a pack hook that writes to its input, a write that `torch.compile` cannot express.

Why
    The reasons differ. The report of a run says in its note which reason applies.

Example
    import torch

    x = torch.ones(2, 3, requires_grad=True) * 2
    hidden = x[:, -1]
    hidden.detach_()

Instead
    import torch

    x = torch.ones(2, 3, requires_grad=True) * 2
    hidden = x[:, -1]
    hidden = hidden.detach()

Notes
    Nearly always the out-of-place version does what you meant: `detach` for `detach_`, `squeeze` for `squeeze_`,
    `inplace=False` for an activation.
"""

from __future__ import annotations

from noclobber.model.events import Refusal
from noclobber.model.finding import Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.othertexts import TEXTS
from noclobber.rules.shared.refusing import finding, recognised, says, writes_it
from noclobber.rules.shared.wording import op_in_words

CODE = "NC399"
NAME = "other-refusal"
SEVERITY: Severity = "error"
MESSAGES = tuple(text.pattern for text in TEXTS)

_UNSEEN = "noclobber did not see the write. It happened after the save and before backward"
_WORDS = {
    "save": "it is saved here",
    "backward": "backward reads it here",
    "grad": "`autograd.grad` reads it here",
    "access": "it is used here",
}


def find(event: Event) -> Finding | None:
    """Any other refusal that is about writing in place, saves, views or versions."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    text = next(one for one in TEXTS if one.pattern.search(refusal.message))
    wrote = refusal.written is not None or refusal.call == "write"
    return finding(
        (CODE, NAME, SEVERITY),
        text.headline,
        refusal,
        told=_told(refusal) if wrote else _WORDS[refusal.call],
        created="it is made here",
        notes=[text.note, *[_UNSEEN] * (says(refusal, "has been detached in-?place") and refusal.written is None)],
        suggestions=[Suggestion(text.help)],
    )


def _told(refusal: Refusal) -> str:
    if refusal.written is not None:
        return writes_it(refusal)
    return f"`{op_in_words(refusal.op)}` is refused here" if refusal.op else "this is refused"
