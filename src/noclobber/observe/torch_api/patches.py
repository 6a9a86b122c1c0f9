"""Attributes that are replaced while noclobber is on, and put back as they were."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from noclobber.observe.torch_api.frames import passed_over

_ABSENT = object()


class Patches:
    """Replaced attributes, undone in reverse order. Undoing leaves alone what somebody else has replaced since."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: type | ModuleType, name: str, value: Any) -> None:
        """Set `owner.name`, remembering what the owner itself held (nothing, where it only inherits the name)."""
        self._made.append((owner, name, vars(owner).get(name, _ABSENT), passed_over(value)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        for owner, name, before, value in reversed(self._made):
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._made.clear()
