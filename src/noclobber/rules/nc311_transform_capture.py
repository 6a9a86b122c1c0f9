"""NC311 transform-capture: a function under `torch.func` writes to a tensor that it did not get as an argument

What happens
    A function given to `torch.func.grad`, `vjp`, `jvp` or `functionalize` writes in place to a tensor from outside:
    a cache, a buffer, running statistics. PyTorch refuses: "During a grad (vjp, jvp, grad, etc) transform, the
    function provided attempted to call in-place operation (aten::add_.Tensor) that would mutate a captured Tensor".

Why
    A transform wraps the arguments of the function and nothing else. A tensor from outside is not wrapped, so it
    cannot hold a value that carries a derivative. After the call such a value would have no meaning.

Example
    import torch

    total = torch.zeros(3)

    def loss(x):
        total.add_(x)
        return total.sum()

    torch.func.grad(loss)(torch.ones(3))

Instead
    import torch

    total = torch.zeros(3)

    def loss(x, total):
        total = total + x
        return total.sum()

    torch.func.grad(loss)(torch.ones(3), total)

Notes
    Pass state as an argument and return it as a result (`has_aux=True`). For modules, `torch.func.functional_call`
    takes parameters and buffers as arguments. For batch norm, use `torch.func.replace_all_batch_norm_modules_`, or
    `net.eval()`.
    An assignment to `.data` is refused as well, but a write through the `.data` of an argument raises nothing.
"""

from __future__ import annotations

import re

from noclobber.model.events import Refusal
from noclobber.model.finding import Cure, Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import finding, messages, recognised, says
from noclobber.rules.shared.wording import op_in_words

CODE = "NC311"
NAME = "transform-capture"
SEVERITY: Severity = "error"
MESSAGES = messages(
    r"attempted to call in-place operation (?:\([^)]*\) )?that would mutate a captured Tensor",
    r"mutating directly with `\.?data` inside functorch",
    "mutating a non-functional tensor with a functional tensor",
)

_NAMED = re.compile(r"in-place\s+operation\s+\(([\w:.]+)\)")


def find(event: Event) -> Finding | None:
    """A refused write to a tensor that a transform does not wrap."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    found = _NAMED.search(refusal.message)
    op = refusal.op or (found[1] if found else None)
    told = f"`{op_in_words(op)}` writes it here" if op else "written in place here"
    if says(refusal, "inside functorch"):
        headline, told = "assignment to `.data` inside a `torch.func` transform", "`.data` is assigned here"
        helps = [Suggestion("bind the new value to a name: `x = new`", cure=Cure.OUT_OF_PLACE)]
    else:
        headline = "in-place write to a tensor from outside of the transformed function"
        helps = [
            Suggestion(
                "give the tensor to the function as an argument, and return its new value: `has_aux=True`",
                cure=Cure.OUT_OF_PLACE,
            ),
            Suggestion("for batch norm: `torch.func.replace_all_batch_norm_modules_(net)`, or `net.eval()`"),
        ]
        if not _statistics(refusal):
            helps = helps[:1]
    return finding(
        (CODE, NAME, SEVERITY),
        headline,
        refusal,
        told=told,
        created="it is made here, outside of the function",
        notes=["a transform wraps only the arguments of the function; another tensor cannot hold a tracked value"],
        suggestions=helps,
    )


def _statistics(refusal: Refusal) -> bool:
    """Return True if the tensor may be a running statistic: it is a buffer, or it has no known name."""
    return refusal.tensor.kind == "buffer" or refusal.tensor.name is None
