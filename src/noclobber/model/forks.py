"""What happens when this process forks. A thread that exists only in the parent may hold locks: they are repaired."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Locked(Protocol):
    """What has a lock."""

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""


_locked: WeakSet[Locked] = WeakSet()


def unlocked_in_child(one: Locked) -> None:
    """Unlock an object in every child that this process forks; and now, for the first time."""
    _locked.add(one)
    one.unlock()


def _in_child() -> None:
    for one in list(_locked):
        one.unlock()


@functools.cache
def at_fork(**functions: Callable[[], None]) -> None:
    """Call `before` or `after_in_child` at every fork from now on. Only once each: Python cannot unregister them."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**functions)


at_fork(after_in_child=_in_child)
