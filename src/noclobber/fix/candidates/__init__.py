"""Ways to mend a finding: which kinds are tried for which rule, the likeliest first. Nothing here is proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from noclobber.fix.candidate import Candidate
from noclobber.fix.candidates.kinds import KINDS
from noclobber.fix.candidates.scene import Scene
from noclobber.fix.candidates.suggested import suggested
from noclobber.model.finding import Finding

MOST = 8
"""Candidates of one finding: each is tried by running the program."""


def candidates(finding: Finding, read: Callable[[str], str]) -> list[Candidate]:
    """Candidates for a finding, the likeliest and smallest first; empty where none is known.

    `read` gives the text of a file, with plain line ends; it raises OSError where there is none.
    """
    scene = Scene(finding, read)
    found = [*suggested(scene), *(one for kind in KINDS.get(finding.code, ()) for one in kind(scene))]
    ranked = sorted(_distinct(found), key=lambda one: one.cost)
    return ranked[:MOST]


def _distinct(found: Iterable[Candidate]) -> Iterator[Candidate]:
    seen = set()
    for one in found:
        key = frozenset((edit.span, edit.replacement) for edit in one.edits)
        if one.edits and key not in seen:
            seen.add(key)
            yield one
