"""What a write may mean that autograd was never told of, and the change that states each meaning."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

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


def readings(finding: Finding, read: Callable[[str], str]) -> list[tuple[Meaning, Change]]:
    """Return changes that each state one meaning of a write outside of autograd. They are questions, not fixes.

    `read` gives the text of a file; it raises OSError where there is none.
    """
    if finding.code == "NC202":
        found = {Meaning.PASSED: (cloned,), Meaning.ASIDE: (not_shared,)}
        return [(meaning, one) for meaning, fitting in found.items() for one in candidates(finding, read, fitting)]
    scene = Scene(finding, read)
    passing = [(Meaning.PASSED, one) for write in scene.writes() for one in straight_through(write)]
    return [*passing, *((Meaning.PART, one) for one in candidates(finding, read))][:MOST]
