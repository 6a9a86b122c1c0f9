"""NC903 harmless-write: a call writes in place, breaks no gradient, and lowers the peak of memory

What happens
    A call writes in place. When it did, no save held the memory that it overwrites, and out of place the program would
    need more memory at its peak.

Why
    An in-place write is dangerous only if somebody still needs the old bytes. Nobody saved them here, so backward
    cannot read them. And both tensors would have been in memory at the peak.

Example
    import torch

    x = torch.ones(1000, requires_grad=True)
    h = x.expand(1000, 1000) - 1
    h += x
    h.sum().backward()

Instead
    import torch

    x = torch.ones(1000, requires_grad=True)
    h = x.expand(1000, 1000) - 1
    h.sum().backward()

Notes
    The hint holds for what this run did. Another path through the program may save the tensor first: keep
    `noclobber run` among the tests.
"""

from __future__ import annotations

from dataclasses import replace

from noclobber.model.reports.finding import Finding, label
from noclobber.model.seen.hints import InPlaceCall
from noclobber.model.seen.silent import Event
from noclobber.model.units import size
from noclobber.rules.shared.account import account
from noclobber.rules.shared.wording import name_in_words, op_in_words
from noclobber.rules.shared.writetext import is_written_in_place, written_name

SEVERITY = "hint"


def find(event: Event) -> Finding | None:
    """The finding for a call in place that is safe and pays; None for any other."""
    if not isinstance(event, InPlaceCall) or event.saved or event.copied or not event.rise:
        return None
    if not is_written_in_place(event.write, event.op):
        return None
    tensor = replace(event.tensor, name=written_name(event.write))
    op, what = op_in_words(event.op), name_in_words(tensor)
    return account(
        f"`{op}` overwrites {what} safely, and saves {size(event.rise)} at the peak",
        [label("write", event.write, f"nobody saved {what} before `{op}` overwrites it here")],
        notes=[f"out of place, the program would need {size(event.rise)} more at its peak"],
        event=replace(event, tensor=tensor),
    )
