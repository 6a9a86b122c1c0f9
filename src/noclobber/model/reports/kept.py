"""What `preserve` kept: the bytes that a write would have destroyed, line by line."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.source import Site


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes copied before the writes of one line, for the saves of one line. `op` is "aten::mul_", or "Adam.step"."""

    write: Site | None
    op: str
    save: Site | None
    bytes: int
    times: int
    """How many copies."""
    again: bool = False
    """Whether `save` is the call of a checkpoint, whose region reads these bytes when it runs again."""
