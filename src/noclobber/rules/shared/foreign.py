"""What rules say of a write by code outside of torch, where the program goes on with what was written."""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.finding import Cure, Suggestion
from noclobber.model.seen.events import Write
from noclobber.rules.shared.account import Help

GIVEN_OUT = ("numpy", "__array__", "__array_interface__", "__dlpack__", "to_dlpack")
"""Functions and methods that hand out the memory of a tensor."""


def meant_or_copied(write: Write) -> Sequence[Help]:
    """The author decides whether such a write is part of the function."""
    by_numpy = write.handed is not None and write.handed.by in GIVEN_OUT
    copied = "`t.numpy().copy()`" if by_numpy else "`t.clone()`"
    return (
        "decide whether the write is part of the function: the program goes on with what was written, and autograd "
        "does not see it",
        Suggestion("if it is, write with torch and out of place", cure=Cure.OUT_OF_PLACE),
        f"if only the other side should see it, give it a copy: {copied}",
    )
