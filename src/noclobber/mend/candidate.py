"""A candidate: edits to the source that may fix a finding. Nothing is proven about them yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from noclobber.model.finding import Edit, Finding

Way = Literal["same", "anew", "summed"]
"""How the gradients of a patched program compare with the right ones. same: call by call. anew: a forward that ran once
runs again, so later losses come from newer weights. summed: two backwards are one, of the sum of their losses."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to fix a finding: edits to one or more files.

    `title` is an imperative without a full stop. An edit of an empty span inserts. `cost`: smaller is tried first among
    equals, roughly the lines touched.
    """

    title: str
    edits: tuple[Edit, ...]
    cost: int = 0
    way: Way = "same"


_UNTRACKED = "NC208"


def is_of_intent(finding: Finding) -> bool:
    """Return True if only the author can decide a finding: no run shows what a write outside of autograd to a tensor in
    the graph should do to the gradient, even if the write also clobbers a save."""
    return finding.code == _UNTRACKED or any(one.untracked for one in finding.writes)
