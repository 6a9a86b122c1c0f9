"""A change to the source that is sound by construction."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.finding import Cure, Edit


@dataclass(frozen=True, slots=True)
class Sound:
    """`title` is an imperative without a full stop; `edits` are to be made together."""

    title: str
    edits: tuple[Edit, ...]
    cure: Cure
