"""Attributes that are replaced for as long as a process belongs to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Patches:
    """What is put in the place of something, until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: object) -> None:
        """Replace an attribute. It is left alone later if somebody else has replaced it too."""
        before = getattr(owner, name)

        def undo() -> None:
            if getattr(owner, name, None) is value:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        while self._undo:
            self._undo.pop()()
