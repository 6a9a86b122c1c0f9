"""NC307 overlap-write: in-place write to elements that share memory, or to memory that the operation also reads

What happens
    Either the elements of the written tensor share memory, as in the result of `expand`. Or the value and the
    written tensor share memory, but not element by element, as in `x += x.t()`. PyTorch refuses: "unsupported
    operation: more than one element of the written-to tensor refers to a single memory location", or "some elements
    of the input tensor and the written-to tensor refer to a single memory location".

Why
    The result would depend on the order in which the elements are computed.

Example
    import torch

    gray = torch.ones(1, 4)
    image = gray.expand(3, 4)
    image += 1

Instead
    import torch

    gray = torch.ones(1, 4)
    image = gray.expand(3, 4).clone()
    image += 1

Notes
    `expand`, `expand_as`, `broadcast_to`, `broadcast_tensors`, and `unfold` with overlapping windows, make elements
    that share memory; `repeat` copies. If you write a tensor onto itself, clone the value:
    `x[1:] = x[:-1].clone()`.
    Not every operation checks this: `index_put_` and `masked_fill_` on an expanded tensor pass, and write more
    elements than you named.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cause, Cure, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.rules.shared.account import Help
from noclobber.rules.shared.refusing import ASIDE, Text, blamed
from noclobber.rules.shared.writetext import is_rebindable, write_of


def _of_an_expanded_tensor(refusal: Refusal) -> list[Help]:
    distinct = "make the elements distinct where the tensor is made: `.expand(...).clone()`, or `repeat`"
    if is_rebindable(write_of(blamed(refusal)), refused=True):
        return [ASIDE, f"or {distinct}"]
    return [distinct]


_CLONE = "Please clone() the tensor before performing the operation."
TEXTS = (
    Text(
        [
            "unsupported operation: [some elements of the input tensor and the written-to tensor refer to a single "
            f"memory location]. {_CLONE}",
            "unsupported operation: the [input tensors cannot refer to any of the output memory locations].",
        ],
        "in-place write to memory that the same operation reads",
        [Suggestion("clone the value that is read", cure=Cure.CLONE_VALUE)],
        "the value and the tensor written share memory; the result would depend on the order of the elements",
        cause=Cause.READS_TARGET,
    ),
    Text(
        [
            "unsupported operation: [more than one element of the written-to tensor refers to a single memory location]"
            f". {_CLONE}",
            "While executing *, functionalization encountered [a tensor being mutated that has internal overlap].",
        ],
        "in-place write to a tensor whose elements share memory",
        _of_an_expanded_tensor,
        "several elements share one place in memory, as after `expand`; their order would decide the result",
        cause=Cause.SELF_OVERLAP,
    ),
)
