"""A candidate: edits to the source that may mend a finding, before anything is known about what they do."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.finding import Edit


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to mend a finding: edits to one or more files.

    `title` is an imperative without a full stop. An edit of an empty span inserts. `cost`: smaller is tried first among
    equals, roughly the lines touched.
    """

    title: str
    edits: tuple[Edit, ...]
    cost: int = 0


OF_INTENT = ("NC208",)
"""Findings that are a question to whoever wrote the program: no run can tell what is meant."""
