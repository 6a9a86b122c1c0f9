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

from noclobber.model.reports.finding import Cause, Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import ASIDE, Text, blamed, is_below, writes_it
from noclobber.rules.shared.texts import A_VIEW, ITS_BASE, function_of, printed
from noclobber.rules.shared.writetext import is_rebindable, write_of
from noclobber.syntax.writes import Form

_HOOK = "BackwardHookFunction"


def _source(refusal: Refusal) -> str:
    if (function := function_of(refusal.message)) == _HOOK:
        return "a module with a full backward hook"
    return f"the custom Function `{function}`" if function else "a custom Function"


def _base(refusal: Refusal) -> str:
    return "the base of " * is_below(refusal)


def _helps(refusal: Refusal) -> list[Help]:
    write, hooked = write_of(blamed(refusal)), function_of(refusal.message) == _HOOK
    aside = is_rebindable(write, refused=True)
    if hooked and not aside and write.form in (Form.CALL, Form.OTHER):
        return ["build the activation with `inplace=False`: `for m in net.modules(): m.inplace = False`"]
    if hooked:
        return [ASIDE]
    clone = "return a clone from the Function's `forward`: `return x.clone()`"
    returned = Suggestion(f"or {clone}" if aside else clone, cure=Cure.CLONE_VALUE)
    return [ASIDE, returned] if aside else [returned, "or clone its result before the write"]


_INSIDE = (
    "This [view was created inside a custom Function] (or because an input was returned as-is) and the autograd logic "
    "to handle view+inplace would override the custom backward associated with the custom Function, leading to "
    "incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)
TEXTS = (
    Text(
        [printed(one) + f" {_INSIDE}" for one in (A_VIEW, ITS_BASE)],
        lambda refusal: f"in-place write to {_base(refusal)}a view returned by {_source(refusal)}",
        _helps,
        lambda refusal: (
            f"the write would drop the backward that "
            f"{'the hook' if function_of(refusal.message) == _HOOK else _source(refusal)} adds"
        ),
        told=lambda refusal: writes_it(refusal, f"{_base(refusal)}the view"),
        created=lambda refusal: f"the view is made here, by {_source(refusal)}",
        cause=lambda refusal: Cause.HOOKED if function_of(refusal.message) == _HOOK else None,
    ),
)
