"""NC312 forward-ad: a Function whose `jvp` does not write or view the tangent as `forward` does the input

What happens
    In forward mode a custom Function marks its input dirty, or returns a view, but its `jvp` makes a new tangent.
    PyTorch refuses: "An inplace custom Function is not modifying the forward mode gradients inplace". Or a second
    tangent is set where one exists: "Cannot set a value of a forward grad if it already exists".

Why
    In forward mode each tensor has a tangent. If `forward` writes the tensor in place, `jvp` must write that
    tangent in place. If `forward` returns a view of the tensor, `jvp` must return a view of the tangent.

Example
    import torch
    import torch.autograd.forward_ad as forward_ad

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)
        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 2

    with forward_ad.dual_level():
        Double.apply(forward_ad.make_dual(torch.ones(3), torch.ones(3)))

Instead
    import torch
    import torch.autograd.forward_ad as forward_ad

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)
        @staticmethod
        def jvp(ctx, tangent):
            return tangent.mul_(2)

    with forward_ad.dual_level():
        Double.apply(forward_ad.make_dual(torch.ones(3), torch.ones(3)))

Notes
    If a Function returns its input, its `jvp` returns the tangent itself. If it returns a view of its input, its
    `jvp` returns the same view of the tangent. The simplest Function writes nothing in place and returns new
    tensors.
    "ZeroTensors are immutable" is about a tangent that PyTorch did not materialise: clone the tangent before you
    write to it.
"""

from __future__ import annotations

from functools import partial

from noclobber.rules.shared.refusing import APPLIED, Text, applied

_CARRIED = "in forward mode each tensor has a tangent; an in-place write must update both"
_IN_PLACE = ("write the tangent in place in `jvp` and return it: `return tangent.mul_(2)`", "or write nothing in place")
_text = partial(Text, note=_CARRIED, told=applied, surfaced=APPLIED)
TEXTS = (
    _text(
        [
            "A custom Function's forward is returning a view (or an input as-is) [but the jvp is not returning a view]",
            "A custom Function is returning a view [but the jvp is not returning a view] of the same base as the given "
            "grad input.",
        ],
        "a Function returns a view, but its `jvp` returns no view of the tangent",
        ["return the same view of the tangent from `jvp`", "or return a clone from `forward`"],
    ),
    _text(
        ["An inplace [custom Function is not returning the forward mode gradients] as-is."],
        "an in-place Function whose `jvp` does not return the tangent it was given",
        _IN_PLACE,
    ),
    _text(
        ["An inplace [custom Function is not modifying the forward mode gradients] inplace."],
        "an in-place Function whose `jvp` does not write the tangent in place",
        _IN_PLACE,
    ),
    _text(
        [
            "Cannot set a value of a forward grad if it already exists",
            "Only inplace operations can re-set the forward grad",
        ],
        "a second tangent for a tensor that has one",
        ["make a new dual tensor from the primal: `make_dual(unpack_dual(t).primal, tangent)`"],
        told="the tangent is set here",
    ),
    _text(
        ["ZeroTensors are immutable"],
        "in-place write to a tangent that is zero and was not materialised",
        [
            "clone the tangent before the write, or write out of place; where PyTorch itself writes it, as `mse_loss` "
            "does under `jvp` of `grad`, compute the same with plain operators"
        ],
        told="written in place here",
    ),
)
