"""What a forked child puts right: a lock may be held by a thread that stayed behind in the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_unlocking: list[WeakMethod[Callable[[], None]]] = []


def unlocked_in_child(unlock: Callable[[], None]) -> None:
    """Call a bound method in every child that this process forks, as long as its object lives; and once now."""
    _unlocking.append(WeakMethod(unlock))
    unlock()


def _in_child() -> None:
    for reference in _unlocking:
        if (unlock := reference()) is not None:
            unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
