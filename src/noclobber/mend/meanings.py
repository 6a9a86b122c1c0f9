"""What only the author can decide: each meaning that a program may have, and the change that states it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from noclobber.mend.autograd.constants import taken_as_constant
from noclobber.mend.autograd.seen_by_autograd import straight_through
from noclobber.mend.change import Change
from noclobber.mend.copies.clone_for_reader import cloned
from noclobber.mend.copies.own_bytes import not_shared
from noclobber.mend.cures import MOST, candidates
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Finding


class Meaning(Enum):
    """What a write is for. The values are words for a report."""

    PASSED = "if the gradient should pass as if nothing had happened"
    """The loss follows the write, the gradient leaves it out."""
    PART = "if the write is part of the function"
    """The loss and the gradient follow the write."""
    ASIDE = "if only the code that writes should see it"
    """Neither does."""
    CONSTANT = "if it is a constant in the loop"
    """The gradient leaves out what was computed before."""


def readings(finding: Finding, read: Callable[[str], str]) -> list[tuple[Meaning, Change]]:
    """Return changes that each state one meaning of a write outside of autograd. They are questions, not fixes.

    `read` gives the text of a file; it raises OSError where there is none.
    """
    if finding.code == "NC202":
        found = {Meaning.PASSED: (cloned,), Meaning.ASIDE: (not_shared,)}
        return [(meaning, one) for meaning, fitting in found.items() for one in candidates(finding, read, fitting)]
    scene = Scene(finding, read)
    if not scene.is_unseen:
        return [(Meaning.CONSTANT, one) for one in taken_as_constant(scene)]
    passing = [(Meaning.PASSED, one) for write in scene.writes() for one in straight_through(write)]
    return [*passing, *((Meaning.PART, one) for one in candidates(finding, read))][:MOST]
