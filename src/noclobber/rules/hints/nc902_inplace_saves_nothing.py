"""NC902 inplace-saves-nothing: a call writes in place, and the peak of memory would be the same without that

What happens
    A call writes in place and saves no memory: autograd clones what is overwritten, or the peak is at another moment.

Why
    Some operators need their input for backward: `silu_`, `elu_` with an input that must be kept, `pow_`. In place,
    autograd clones this input first. Other calls save memory, but not at the peak. Out of place, the old tensor is
    freed as soon as its name stands for the new one.

Example
    import torch
    import torch.nn.functional as F

    x = torch.ones(1000, 1000, requires_grad=True)
    h = x * 2
    h = F.silu(h, inplace=True)
    h.sum().backward()

Instead
    import torch
    import torch.nn.functional as F

    x = torch.ones(1000, 1000, requires_grad=True)
    h = x * 2
    h = F.silu(h)
    h.sum().backward()

Notes
    An in-place write that saves nothing is only a risk: a later change of the program may save or read the tensor.
    In place can still be faster, because it allocates nothing.
    The report counts with a program that drops the old tensor at once. If a name still stands for it, it lives on.
"""

from __future__ import annotations

from dataclasses import replace

from noclobber.model.reports.finding import Cure, Finding, Suggestion, label
from noclobber.model.seen.hints import InPlaceCall
from noclobber.model.seen.silent import Event
from noclobber.model.units import size
from noclobber.rules.shared.account import account
from noclobber.rules.shared.wording import name_in_words, op_in_words
from noclobber.rules.shared.writetext import is_written_in_place, written_name

SEVERITY = "hint"


def find(event: Event) -> Finding | None:
    """The finding for a call in place that lowers no peak; None for one that does, or that the text does not show."""
    if not isinstance(event, InPlaceCall) or event.saved or not (event.copied or not event.rise):
        return None
    if not is_written_in_place(event.write, event.op):
        return None
    tensor = replace(event.tensor, name=written_name(event.write))
    op, what = op_in_words(event.op), name_in_words(tensor)
    if event.copied:
        why, text = (
            f"autograd keeps a clone of {what}",
            f"`{op}` overwrites {what}; its {size(event.copied)} are cloned",
        )
        notes = ["backward needs what this operator overwrites, so autograd clones it first"]
    else:
        why, text = "the peak is at another moment", f"`{op}` overwrites {what} here, {size(event.bytes)} at most"
        notes = ["out of place, the program would need no more memory at its peak"]
    return account(
        f"`{op}` saves no memory: {why}",
        [label("write", event.write, text)],
        notes=notes,
        helps=[
            Suggestion(
                "write out of place: that takes no more memory, and no save can be overwritten", cure=Cure.OUT_OF_PLACE
            )
        ],
        event=replace(event, tensor=tensor),
    )
