"""NC305 function-view-write: in-place write to a view that a custom Function or a module hook returned

What happens
    A custom `autograd.Function` returns a view of its input, or the input itself. Full backward hooks use such a
    Function, so every output of a hooked module is such a view. Then the view or its base is written in place.
    PyTorch refuses: "Output 0 of BackwardHookFunction is a view and is being modified inplace. This view was
    created inside a custom Function".

Why
    After a write to a view, autograd rebuilds the history of the view from its base. That would leave out the
    backward that the Function defines, and the hook with it.

Example
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    net[0].register_full_backward_hook(lambda module, before, after: None)
    net(torch.ones(2, 3))

Instead
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net[0].register_full_backward_hook(lambda module, before, after: None)
    net(torch.ones(2, 3))

Notes
    For a model from a library: `for m in net.modules(): m.inplace = False` where `m` has it. Residual additions
    written as `out += skip` raise the same error.
    In your own Function, return `x.clone()`, or `x.view_as(x).clone()`.
    Wrappers for distributed training also return views from Functions: clone their output before you write to it.
"""

from __future__ import annotations

import re

from noclobber.model.events import Refusal
from noclobber.model.finding import Cause, Cure, Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import (
    blamed,
    finding,
    is_below,
    messages,
    recognised,
    told_below,
    unseen_below,
    writes_it,
)
from noclobber.rules.shared.writetext import form, is_rebindable
from noclobber.syntax.writes import Form

CODE = "NC305"
NAME = "function-view-write"
SEVERITY: Severity = "error"
MESSAGES = messages("view was created inside a custom Function")

_OUTPUT = re.compile(r"Output\s+\d+\s+of\s+([\w:<>]+)")
_HOOK = "BackwardHookFunction"


def find(event: Event) -> Finding | None:
    """A refused write to, or below, a view that a Function returned."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    found = _OUTPUT.search(refusal.message)
    function = found[1].removesuffix("Backward") if found else ""
    hooked = function == _HOOK
    source = "a module with a full backward hook" if hooked else f"the custom Function `{function}`"
    if not function:
        source = "a custom Function"
    below = is_below(refusal)
    told = told_below(refusal, "the base of the view") if below else writes_it(refusal, "the view")
    return finding(
        (CODE, NAME, SEVERITY),
        f"in-place write to {'the base of a ' if below else 'a '}view returned by {source}",
        refusal,
        told=told,
        created=f"the view is made here, by {source}",
        notes=[
            f"the write would drop the backward that {'the hook' if hooked else source} adds",
            *unseen_below(refusal),
        ],
        suggestions=_cures(refusal, hooked),
        cause=Cause.HOOKED if hooked else None,
    )


def _cures(refusal: Refusal, hooked: bool) -> list[Suggestion]:
    site = blamed(refusal)
    aside = is_rebindable(site, refused=True)
    if hooked:
        words = "write out of place"
        if not aside and form(site) in (Form.CALL, Form.OTHER):
            words = "build the activation with `inplace=False`: `for m in net.modules(): m.inplace = False`"
        return [Suggestion(words)]
    clone = Suggestion("return a clone from the Function's `forward`: `return x.clone()`")
    if not aside:
        return [clone, Suggestion("or clone its result before the write")]
    return [Suggestion("write out of place", cure=Cure.OUT_OF_PLACE), Suggestion(f"or {clone.message}")]
