"""What happens when this process forks. A thread that exists only in the parent may hold locks: they are repaired."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet


class Locked(Protocol):
    """What has a lock."""

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""


_locked: WeakSet[Locked] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def lock(kind: Callable[[], Any] = threading.RLock) -> Any:
    """Return a lock that nobody holds in a child that this process forks.

    The usual kind lets its thread in again: a garbage collection or a signal may run code that locks while it is held.
    """
    made = kind()
    _locks.add(made)
    return made


def unlocked_in_child(one: Locked) -> None:
    """Unlock an object in every child that this process forks; and now, for the first time."""
    _locked.add(one)
    one.unlock()


def _in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the locks of Python's own library (3.9 to 3.14)
    for one in list(_locked):
        one.unlock()


@functools.cache
def at_fork(**functions: Callable[[], None]) -> None:
    """Call `before` or `after_in_child` at every fork from now on. Only once each: Python cannot unregister them."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**functions)


at_fork(after_in_child=_in_child)
