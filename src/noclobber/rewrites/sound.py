"""A change to the source that is sound by construction."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.finding import Edit


@dataclass(frozen=True, slots=True)
class Sound:
    """`title` is an imperative without a full stop; `edits` are to be made together.

    `new`: what the change makes a second tensor of, as it is spelled in the source; empty where it makes none.
    """

    title: str
    edits: tuple[Edit, ...]
    new: str = ""
