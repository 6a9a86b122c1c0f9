"""What happens when this process forks. A thread that exists only in the parent may hold locks: they are repaired."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def lock() -> Any:
    """Return a lock that no thread of the parent holds in a child that this process forks.

    It lets its thread in again: a garbage collection or a signal may run code that locks while it is held.
    """
    made = threading.RLock()
    _locks.add(made)
    return made


def _in_child() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # the thread that forks goes on in the child, and lets go of what it holds
            lock._at_fork_reinit()  # as the locks of Python's own library (3.9 to 3.14)


@functools.cache
def at_fork(**functions: Callable[[], None]) -> None:
    """Call `before` or `after_in_child` at every fork from now on. Only once each: Python cannot unregister them."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**functions)


at_fork(after_in_child=_in_child)
