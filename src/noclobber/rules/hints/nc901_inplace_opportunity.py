"""NC901 inplace-opportunity: an operator could write into its input, and the peak of memory would fall

What happens
    An operator makes a new tensor although nothing needs its input any more: no later line reads the input, and
    autograd does not keep it. Both tensors are in memory at the moment when the program needs the most.

Why
    Written in place, the result takes the memory of the input. That helps only if both are alive at the peak: the
    report says by how many bytes the peak falls, and lists nothing that would not lower it.

Example
    import torch

    x = torch.ones(1000, 1000, requires_grad=True)
    h = x + 1
    y = h * 3
    y.sum().backward()

Instead
    import torch

    x = torch.ones(1000, 1000, requires_grad=True)
    h = x + 1
    y = h.mul_(3)
    y.sum().backward()

Notes
    `noclobber run --hints` shows hints, the most bytes first. Each is counted after those before it.
    `noclobber fix --hints` applies them: it runs the program before and after, and keeps a change only if results and
    gradients are the same to the last bit and the measured peak falls as announced.
    What would lower the peak by less than one percent is not shown.
    Bytes that operators use for themselves while they run are not counted here. The measured peak has them.
"""

from __future__ import annotations

from dataclasses import replace

from noclobber.model.reports.finding import Edit, Finding, label
from noclobber.model.seen.hints import Opportunity
from noclobber.model.seen.silent import Event
from noclobber.model.units import share, size
from noclobber.rules.shared.account import account
from noclobber.rules.shared.wording import name_in_words, op_in_words
from noclobber.syntax.edits import rewritten
from noclobber.syntax.in_place import first_argument, in_place
from noclobber.syntax.names import dotted
from noclobber.syntax.tree import Place, place_of

SEVERITY = "hint"
LEAST = 0.01
"""The smallest part of the peak that is worth a change."""


def find(event: Event) -> Finding | None:
    """The finding for an operator that could write in place; None where its text cannot be rewritten."""
    if not isinstance(event, Opportunity) or event.bytes < LEAST * event.peak:
        return None
    place = place_of(event.write)
    if place is None:
        return None
    op = event.spelling.name or op_in_words(event.op)
    texts = in_place(place, event.op, event.argument, event.spelling, numbers=event.numbers)
    if event.spelling.how == "module":
        target = None if event.spelling.inner else first_argument(place.node)
        words = f"build the module with the flag: `{op}(..., inplace=True)`"
    elif len(texts) == 1:
        target, words = texts[0].target, f"write in place: `{_after(place, texts[0].edit)}`"
    elif texts:
        target, words = None, f"write in place: `{op}_`"
    else:
        return None
    tensor = replace(event.tensor, name=dotted(target) or None)
    what, fall = name_in_words(tensor, "its input"), f"{size(event.bytes)} ({share(event.bytes, event.peak)})"
    return account(
        f"`{op}` could write into {what}: the peak of memory falls by {fall}",
        [label("write", event.write, f"{what} is not needed after this line, and could hold the result")],
        notes=["nothing read or kept the input afterwards"],
        helps=[words],
        event=replace(event, tensor=tensor),
    )


def _after(place: Place, edit: Edit) -> str:
    """The statement at a place as it is after an edit, on one line."""
    whole = place.file.span(place.statement) if place.statement is not None else edit.span
    return " ".join(rewritten(place.file, whole, [edit]).split())
