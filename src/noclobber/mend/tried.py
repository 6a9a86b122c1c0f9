"""Ways to fix a finding: which are tried for which rule, the likeliest first. Nothing here is proven."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from noclobber.mend import shown
from noclobber.mend.candidate import Candidate, is_of_intent
from noclobber.mend.finding import Scene
from noclobber.mend.registry import KINDS, general
from noclobber.mend.untracked_writes import straight_through
from noclobber.model.finding import Finding
from noclobber.model.silent import Drift, GradientWrite, LostHook, Overwritten, StaleCast, Undeclared, Untracked

MOST = 8
"""Candidates of one finding: each is tried by running the program."""
MOST_MORE = 6
"""What is tried beyond these where none of them is proven."""
LAST_RESORT = 6
"""The cost from which a candidate is a last resort: tried only if no other is proven."""


def candidates(finding: Finding, read: Callable[[str], str]) -> list[Candidate]:
    """Candidates for a finding, the likeliest and smallest first; empty where none is known.

    `read` gives the text of a file, with plain line ends; it raises OSError where there is none.
    """
    scene = Scene(finding, read)
    found = [*(one for kind in KINDS.get(finding.code, ()) for one in kind(scene)), *_sound(scene)]
    ranked = sorted(_distinct(found), key=lambda one: one.cost)[:MOST]
    if not shows_what_is_right(finding):
        return ranked
    rest = sorted(general(scene), key=lambda one: one.cost)
    return list(_distinct([*ranked, *(replace(one, cost=one.cost + LAST_RESORT) for one in rest)]))[: MOST + MOST_MORE]


def shows_what_is_right(finding: Finding) -> bool:
    """Return True if a run shows of any change whether it is right. Else only those are tried that mean the same.

    No right gradient is known of what autograd was never told, and a region that runs again may drift in other ways.
    """
    told = not isinstance(
        finding.event, (GradientWrite, Undeclared, Untracked, Overwritten, LostHook, StaleCast, Drift)
    )
    return finding.severity == "error" and told and not is_of_intent(finding)


def _sound(scene: Scene, cost: int = 5) -> Iterator[Candidate]:
    """Return the change that a report would show, if it is a new one and the files have not changed since the run."""
    for one in scene.finding.labels:
        try:
            if scene.read(one.span.path) != "".join(linecache.getlines(one.span.path)):
                return
        except (OSError, UnicodeDecodeError, KeyError):
            return
    found = shown.sound(scene.finding)
    if found is not None:
        yield Candidate(found.title, found.edits, cost)


def readings(finding: Finding, read: Callable[[str], str]) -> list[Candidate]:
    """Return changes that each state one meaning of a write outside of autograd. They are questions, not fixes."""
    finding = replace(finding, code="NC208")
    scene = Scene(finding, read)
    passing = [one for write in scene.writes() for one in straight_through(write)]
    part = [
        replace(one, title=f"if the write is part of the function: {one.title}") for one in candidates(finding, read)
    ]
    return [*passing, *part][:MOST]


def _distinct(found: Iterable[Candidate]) -> Iterator[Candidate]:
    seen = set()
    for one in found:
        key = frozenset((edit.span, edit.replacement) for edit in one.edits)
        if one.edits and key not in seen:
            seen.add(key)
            yield one
