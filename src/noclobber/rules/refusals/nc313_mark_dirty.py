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

from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.rules.shared.refusing import APPLIED, Text, applied

_BECOMES = "an input that is marked dirty becomes the result of the Function, with its history"
_text = partial(Text, note=_BECOMES, told=applied, surfaced=APPLIED)
TEXTS = (
    _text(
        [
            "Some [elements marked as dirty during the forward method were not returned] as output. The inputs that "
            "are modified inplace must all be outputs of the Function."
        ],
        "`ctx.mark_dirty` on an input that the Function does not return",
        ["return the same tensor that was marked dirty, or write nothing in place and drop `mark_dirty`"],
    ),
    _text(
        [
            "If your [Function modifies inplace an input that is a view of another Tensor], your Function cannot "
            "return more than one Tensor. This is not supported by the current autograd engine. You should either make "
            "sure the input is not a view (using .clone() for example) or make your Function only return one Tensor",
            "Functions which modify views in-place must return a single Variable",
        ],
        "a Function with several results writes in place to an input that is a view",
        [
            Suggestion("give the Function a clone: `Function.apply(x.clone())`", cure=Cure.CLONE_ARGUMENT),
            "or split it: one Function writes, another computes",
        ],
    ),
    _text(
        [
            "mark_dirty() received a tensor that was not an input",
            "Only input Tensors should be given to ctx.mark_dirty",
        ],
        "`ctx.mark_dirty` on a tensor that is not an input of the Function",
        ["drop this `mark_dirty`: a tensor made inside of `forward` needs none"],
    ),
    _text(
        [
            "mark_dirty can only accept variables",
            "autograd internal error: [dirty_tensors attribute is expected to be a tuple] but is",
        ],
        "`ctx.mark_dirty` on something that is not a tensor",
        ["call `ctx.mark_dirty(x, y)` with the tensors themselves, once, and set nothing by hand"],
    ),
)
