"""NC313 mark-dirty-misuse: a custom Function declares its in-place writes wrongly

What happens
    A custom `autograd.Function` calls `ctx.mark_dirty` on a wrong tensor. The Function does not return the tensor
    ("Some elements marked as dirty during the forward method were not returned as output"), or the tensor is not an
    input. Or the tensor is a view, and the Function returns several tensors ("If your Function modifies inplace an
    input that is a view of another Tensor, your Function cannot return more than one Tensor").

Why
    A dirty input becomes a result of the Function: the caller goes on with the same tensor, and the tensor gets the
    Function as its history. So the Function must return the tensor, and autograd must be able to give it a new
    history.

Example
    import torch

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2).clone()

    Double.apply(torch.ones(3, requires_grad=True) * 1)

Instead
    import torch

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

    Double.apply(torch.ones(3, requires_grad=True) * 1)

Notes
    A Function that writes nothing in place needs no `mark_dirty`. A Function that writes in place without
    `mark_dirty` gives a wrong gradient without an error. A leaf that is marked dirty is refused as NC301.
"""

from __future__ import annotations

from noclobber.model.finding import Cure, Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import APPLIED, applied, finding, messages, recognised, says

CODE = "NC313"
NAME = "mark-dirty-misuse"
SEVERITY: Severity = "error"
MESSAGES = messages(
    "elements marked as dirty during the forward method were not returned",
    "Function modifies in-?place an input that is a view of another Tensor",
    r"mark_dirty\(\) received a tensor that was not an input",
    r"Only input Tensors should be given to ctx\.mark_dirty",
    "mark_dirty can only accept variables",
    "dirty_tensors attribute is expected to be a tuple",
    "Functions which modify views in-place must return a single Variable",
)

_BECOMES = "an input that is marked dirty becomes the result of the Function, with its history"


def find(event: Event) -> Finding | None:
    """A refused declaration of `ctx.mark_dirty`."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    cure: Cure | None = None
    if says(refusal, "were not returned"):
        headline = "`ctx.mark_dirty` on an input that the Function does not return"
        helps = ["return the same tensor that was marked dirty, or write nothing in place and drop `mark_dirty`"]
    elif says(refusal, "is a view of another Tensor|modify views in-place"):
        headline = "a Function with several results writes in place to an input that is a view"
        cure = Cure.CLONE_ARGUMENT
        helps = [
            "give the Function a clone: `Function.apply(x.clone())`",
            "or split it: one Function writes, another computes",
        ]
    elif says(refusal, "not an input|Only input Tensors"):
        headline = "`ctx.mark_dirty` on a tensor that is not an input of the Function"
        helps = ["drop this `mark_dirty`: a tensor made inside of `forward` needs none"]
    else:
        headline = "`ctx.mark_dirty` on something that is not a tensor"
        helps = ["call `ctx.mark_dirty(x, y)` with the tensors themselves, once, and set nothing by hand"]
    return finding(
        (CODE, NAME, SEVERITY),
        headline,
        refusal,
        told=applied(refusal),
        surfaced=APPLIED,
        notes=[_BECOMES],
        suggestions=[Suggestion(helps[0], cure=cure), *map(Suggestion, helps[1:])],
    )
