"""What is remembered for findings to come: recent writes, views and saves; bounded, and per thread where PyTorch is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from noclobber.model.events import Step
from noclobber.observe import saves
from noclobber.observe.records import Record
from noclobber.observe.sites import Place
from noclobber.observe.writes import WriteMode

RECENT = 8192
"""Writes kept, whether or not anything was saved of what they write, before those that nobody can need are dropped."""


class Thread(threading.local):
    """What belongs to one thread: sequence numbers, dispatch keys and hook stacks are per thread in PyTorch."""

    def __init__(self) -> None:
        self.history = saves.History()
        self.hooks: tuple[Any, Any] | None = None
        self.mode: WriteMode | None = None
        self.entered = False
        self.withdrawn = False
        self.step: Step | None = None
        self.muted = False
        self.preserving = 0
        """How many `_unsafe_preserve_version_counter` blocks this thread is in."""
        self.boundary = 0
        """The sequence number at the last finished backward: nodes below it belong to graphs that may be freed."""


class Memory:
    """Of this process."""

    def __init__(self) -> None:
        self.recent: list[Record] = []
        """Writes to tensors in the graph, oldest first: they move the version counter of whatever was saved of them."""
        self.limit = RECENT
        self.views: deque[tuple[int, str, Place | None]] = deque(maxlen=RECENT)
        self.accumulated: deque[tuple[int, Place | None]] = deque(maxlen=RECENT)
        """Where `backward()` was called, with the number of the node that came next."""
        self.thread = Thread()

    def prune(self, needed: Callable[[int], bool]) -> None:
        """Called when `recent` has outgrown `limit`: keep the newest, and those whose storage is `needed`.

        The limit then doubles what is left, so that pruning costs each write a constant share.
        """
        old, new = self.recent[: -RECENT // 4], self.recent[-RECENT // 4 :]
        storages = {key: needed(key) for key in {record.key for record in old}}
        self.recent[:] = [record for record in old if storages[record.key]] + new
        self.limit = max(RECENT, 2 * len(self.recent))

    def forget(self) -> None:
        """Drop what is not kept per thread."""
        self.recent.clear()
        self.limit = RECENT
        self.views.clear()
        self.accumulated.clear()
