"""What later findings may need: recent writes and views, and memory that will be read again. Its size is bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol
from weakref import ref

import torch

from noclobber.model.events import Tensor, Write
from noclobber.model.forks import unlocked_in_child
from noclobber.model.live_saves import LiveSaves
from noclobber.observe.core import save_hooks
from noclobber.observe.core.records import Backward, Record
from noclobber.observe.core.sites import Place
from noclobber.observe.core.thread_state import Thread
from noclobber.observe.torch_api import private

RECENT = 8192
"""Writes that are kept, needed or not, before those that no finding can need are dropped."""


class Reread:
    """Memory that the program's own hooks or a checkpoint will read again.

    It keeps the storage's key (`alias`), the version, and a weak reference to the tensor, which returns None once the
    program has dropped the tensor.
    """

    __slots__ = ("__weakref__", "alias", "tensor", "version")

    def __init__(self, key: int, tensor: torch.Tensor) -> None:
        self.alias = key
        self.tensor = private.Weak(tensor)
        self.version = private.version_of(tensor) or 0


class ForeignWriters(save_hooks.ForeignSaves, Protocol):
    """What watches saves whose memory foreign code may hold (exported_saves.py)."""

    def writes(
        self, handle: save_hooks.Handle, tensor: Tensor, backward: Backward, *, explained: bool
    ) -> tuple[Write, ...]:
        """Return the writes that changed the bytes of a save that is being read."""


class Memory:
    """What is remembered in this process."""

    def __init__(self) -> None:
        self.recent: list[Record] = []
        """Writes, oldest first. A write to a tensor in the graph moves the version counter of all saves of it."""
        self.limit = RECENT
        self.views: deque[tuple[int, str, Place | None]] = deque(maxlen=RECENT)
        self.accumulated: deque[tuple[int, Place | None]] = deque(maxlen=RECENT)
        """The ends of `backward()` calls: the moment, and where the call was made."""
        self.rereads: LiveSaves[Reread] = LiveSaves(int)
        """Memory that will be read again although no handle keeps it. Writes to it are remembered too."""
        self.foreign_writers: ForeignWriters | None = None
        """What watches saves whose memory foreign code may hold; None if contents are not watched."""
        self.thread = Thread()
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Make a new lock that nobody holds. Called at the start and in a forked child."""
        self._pruning = threading.Lock()

    def prune(self, needed: Callable[[int], bool]) -> None:
        """Keep the newest writes and those whose storage is `needed`. Called when `recent` is longer than `limit`.

        The limit then becomes twice what is left, so pruning costs a constant time per write. Other threads may append
        meanwhile. A thread that calls this while another thread prunes returns at once.
        """
        if not self._pruning.acquire(blocking=False):
            return
        try:
            count = len(self.recent)
            old, new = self.recent[: count - RECENT // 4], self.recent[count - RECENT // 4 : count]
            storages = {key: needed(key) for key in {record.key for record in old}}
            self.recent[:count] = [record for record in old if storages[record.key]] + new
            self.limit = max(RECENT, 2 * len(self.recent))
        finally:
            self._pruning.release()

    def expect(self, reread: Reread) -> None:
        """Remember the writes to this memory as long as `reread` lives."""
        self.rereads.unsorted.append(ref(reread))
        if len(self.rereads.unsorted) > self.rereads.limit:
            self.rereads.sweep()

    def is_reread(self, key: int) -> bool:
        """Return True if writes to a storage must be remembered although no save of ours lies on it."""
        return bool((self.rereads.unsorted or self.rereads.by_storage) and self.rereads.at(key))

    def forget(self) -> None:
        """Drop the writes, views and ends of backward calls. What belongs to threads stays."""
        self.recent.clear()
        self.limit = RECENT
        self.views.clear()
        self.accumulated.clear()
