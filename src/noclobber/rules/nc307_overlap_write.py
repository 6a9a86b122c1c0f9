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

from noclobber.model.finding import Cause, Cure, Finding, Severity, Suggestion
from noclobber.model.silent import Event
from noclobber.rules.shared.refusing import blamed, finding, messages, recognised, says, writes_it
from noclobber.rules.shared.writetext import is_rebindable

CODE = "NC307"
NAME = "overlap-write"
SEVERITY: Severity = "error"
MESSAGES = messages(
    "more than one element of the written-to tensor refers to a single memory location",
    "some elements of the input tensor and the written-to tensor refer to a single memory location",
    "input tensors cannot refer to any of the output memory locations",
    "a tensor being mutated that has internal overlap",
)


def find(event: Event) -> Finding | None:
    """A refused write whose elements share memory with each other, or with what is read."""
    refusal = recognised(event, MESSAGES)
    if refusal is None:
        return None
    if says(refusal, "input tensors? (?:and the written-to|cannot refer)"):
        headline, cause = "in-place write to memory that the same operation reads", Cause.READS_TARGET
        note = "the value and the tensor written share memory; the result would depend on the order of the elements"
        helps = [Suggestion("clone the value that is read", cure=Cure.CLONE_VALUE)]
    else:
        headline, cause = "in-place write to a tensor whose elements share memory", Cause.SELF_OVERLAP
        note = "several elements share one place in memory, as after `expand`; their order would decide the result"
        cloned = Suggestion("make the elements distinct where the tensor is made: `.expand(...).clone()`, or `repeat`")
        aside = is_rebindable(blamed(refusal), refused=True)
        helps = (
            [Suggestion("write out of place", cure=Cure.OUT_OF_PLACE), Suggestion(f"or {cloned.message}")]
            if aside
            else [cloned]
        )
    return finding(
        (CODE, NAME, SEVERITY),
        headline,
        refusal,
        told=writes_it(refusal),
        created="the view is made here",
        notes=[note],
        suggestions=helps,
        cause=cause,
    )
