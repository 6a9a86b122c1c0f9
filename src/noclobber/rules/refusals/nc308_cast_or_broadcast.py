"""NC308 cast-or-broadcast: the result of an in-place operation does not fit the tensor that has to hold it

What happens
    The result of an in-place operation, or of one with `out=`, does not fit the written tensor. It has another
    element type ("result type Float can't be cast to the desired output type Long") or a larger shape ("output with
    shape [3] doesn't match the broadcast shape [2, 3]").

Why
    Out of place, the result may be a tensor of a new type and shape. In place, the result must fit into the tensor
    that is there: an integer cannot hold a fraction, and a tensor does not grow.

Example
    import torch

    counts = torch.ones(3, dtype=torch.long)
    counts /= 2

Instead
    import torch

    counts = torch.ones(3, dtype=torch.long)
    counts = counts / 2

Notes
    `counts //= 2` stays an integer. An image with one channel that is normalised in place with three means raises
    the shape error: expand and clone the image first. Under `torch.vmap` the shape error can mean that only the
    operand is mapped: then it is NC310.
    A few functions that write nothing raise these errors as well (dropout of integers, a bias of a wrong shape).
    noclobber does not report them if it knows the line.
"""

from __future__ import annotations

from noclobber.model.reports.finding import Cure, Finding, Suggestion
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Event
from noclobber.rules.shared.refusing import Text, blamed, refused
from noclobber.rules.shared.wording import op_in_words
from noclobber.rules.shared.writetext import write_of
from noclobber.syntax.tree import place_of
from noclobber.syntax.writes import Form

_ASIDE = Suggestion("write out of place: the result gets its own tensor", cure=Cure.OUT_OF_PLACE)
_TYPE = "the result of an in-place write has a type that the tensor cannot hold"
_FIXED = "in place the element type cannot change; out of place the result gets the type it needs"
_LARGER = Text(
    ["doesn't match the broadcast shape", "Bad in-place call: input tensor size"],
    "the result of an in-place write is larger than the tensor that has to hold it",
    [_ASIDE, "or give the tensor its shape before: `t = t.expand(shape).clone()`"],
    "in place the shape cannot change; out of place the result gets the broadcast shape",
)
TEXTS = (
    Text(
        ["Index put requires the source and destination dtypes match"],
        _TYPE,
        ["convert the value before it is written: `t[index] = value.to(t.dtype)`"],
        _FIXED,
    ),
    Text(
        ["result type * [can't be cast to the desired output type]"],
        _TYPE,
        [_ASIDE, "or convert before: `t = t.float()`, `value.to(t.dtype)`"],
        _FIXED,
    ),
    _LARGER,
)


def find(event: Event) -> Finding | None:
    """A refused write whose result has another type or a larger shape; None where the line writes nothing in place."""
    if not isinstance(event, Refusal) or not _writes(event):
        return None
    return refused([one for one in TEXTS if one is not _LARGER or not event.unmapped], event)


def _writes(refusal: Refusal) -> bool:
    """Whether the operator writes in place, by its name or by the text of its line.

    Functional operations raise these texts too (on 2.13: linear, dropout, conv_transpose, several losses).
    """
    op = refusal.op or ""
    if op_in_words(op).endswith("_") or op.removeprefix("aten.").partition(".")[2].endswith("out"):
        return True
    site = blamed(refusal)
    inner = site.inside if site is not None and place_of(site.inside) is not None else site
    if place_of(inner) is None:
        return refusal.op is None
    return write_of(inner).form in (Form.AUGMENTED, Form.METHOD, Form.ITEM, Form.FLAG)
