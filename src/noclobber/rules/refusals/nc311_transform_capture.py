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
from functools import partial

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import Text
from noclobber.rules.shared.wording import op_in_words

_NAMED = re.compile(r"in-place\s+operation\s+\(([\w:.]+)\)")
_OUTSIDE = "it is made here, outside of the function"
_WRAPPED = "a transform wraps only the arguments of the function; another tensor cannot hold a tracked value"


def _writes(refusal: Refusal) -> str:
    found = _NAMED.search(refusal.message)
    op = refusal.op or (found[1] if found else None)
    return f"`{op_in_words(op)}` writes it here" if op else "written in place here"


def _helps(refusal: Refusal) -> list[Help]:
    words = "give the tensor to the function as an argument, and return its new value: `has_aux=True`"
    statistics = "for batch norm: `torch.func.replace_all_batch_norm_modules_(net)`, or `net.eval()`"
    may_be = refusal.tensor.kind == "buffer" or refusal.tensor.name is None
    return [Suggestion(words, cure=Cure.OUT_OF_PLACE), *[statistics] * may_be]


_text = partial(Text, note=_WRAPPED, created=_OUTSIDE)
TEXTS = (
    _text(
        ["mutating directly with `data` inside functorch"],
        "assignment to `.data` inside a `torch.func` transform",
        [Suggestion("bind the new value to a name: `x = new`", cure=Cure.OUT_OF_PLACE)],
        told="`.data` is assigned here",
    ),
    _text(
        [
            "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place operation "
            "* [that would mutate a captured Tensor]. This is not supported; please rewrite the function being "
            "transformed to explicitly accept the mutated Tensor(s) as inputs.",
            "mutating a non-functional tensor with a functional tensor",
        ],
        "in-place write to a tensor from outside of the transformed function",
        _helps,
        told=_writes,
    ),
)
