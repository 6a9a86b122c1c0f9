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
from noclobber.model.finding import Cause, Cure, Finding, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import blamed, is_below, of_refusal, recognised, writes_it
from noclobber.rules.shared.writetext import form, is_rebindable
from noclobber.syntax.writes import Form

MESSAGES = ("view was created inside a custom Function",)

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
    source = f"the custom Function `{function}`" if function else "a custom Function"
    source = "a module with a full backward hook" if hooked else source
    below = is_below(refusal)
    return of_refusal(
        refusal,
        f"in-place write to {'the base of ' * below}a view returned by {source}",
        told=writes_it(refusal, f"{'the base of ' * below}the view"),
        created=f"the view is made here, by {source}",
        notes=[f"the write would drop the backward that {'the hook' if hooked else source} adds"],
        helps=_cures(refusal, hooked),
        cause=Cause.HOOKED if hooked else None,
    )


def _cures(refusal: Refusal, hooked: bool) -> list[Help]:
    site = blamed(refusal)
    aside = is_rebindable(site, refused=True)
    if hooked and not aside and form(site) in (Form.CALL, Form.OTHER):
        return ["build the activation with `inplace=False`: `for m in net.modules(): m.inplace = False`"]
    if hooked:
        return ["write out of place"]
    clone = "return a clone from the Function's `forward`: `return x.clone()`"
    if aside:
        return [Suggestion("write out of place", cure=Cure.OUT_OF_PLACE), f"or {clone}"]
    return [clone, "or clone its result before the write"]
