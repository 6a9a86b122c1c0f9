"""NC309 out-with-grad: an operation with `out=` while gradients are recorded

What happens
    A function writes its result into a tensor given as `out=`, and one of its arguments requires grad. PyTorch
    refuses: "add(): functions with out=... arguments don't support automatic differentiation, but one of the
    arguments requires grad".

Why
    `out=` replaces the old values of the tensor, and autograd has no node for that.

Example
    import torch

    x = torch.ones(3, requires_grad=True)
    y = torch.empty(3)
    torch.add(x, 1, out=y)

Instead
    import torch

    x = torch.ones(3, requires_grad=True)
    y = torch.add(x, 1)

Notes
    If you need no gradient of the result, keep `out=` and put the call under `torch.no_grad()`. If you fill a
    larger tensor and need gradients, assign to a slice: `y[i] = f(x)`, or stack the results at the end.
    Forward-mode differentiation refuses `out=` too.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.rules.shared.refusing import Text

TEXTS = (
    Text(
        [
            "* [functions with out=... arguments don't support automatic differentiation], but one of the arguments "
            "requires grad.",
            "Trying to use forward AD with * that [does not support it because it is an out= function]",
        ],
        "`out=` given to an operation whose result needs a gradient",
        [
            Suggestion("take the result as a new tensor, without `out=`", cure=Cure.OUT_OF_PLACE),
            Suggestion(
                "or, if the result needs no gradient, call it inside `with torch.no_grad():`", cure=Cure.NO_GRAD
            ),
        ],
        "`out=` replaces the old values of the tensor; autograd has no node for that",
        told="the result is written into `out` here",
    ),
)
