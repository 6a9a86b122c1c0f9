"""What is remembered for findings to come: recent writes and views, and memory that will be read again; bounded."""

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
"""Writes kept, whether or not anything was saved of what they write, before those that nobody can need are dropped."""


class Reread:
    """Memory that the program's own hooks or a checkpoint will read again: the storage's key, the version, and a weak
    reference to the tensor, which is None for good once the program has dropped it."""

    __slots__ = ("__weakref__", "alias", "tensor", "version")

    def __init__(self, key: int, tensor: torch.Tensor) -> None:
        self.alias = key
        self.tensor = private.Weak(tensor)
        self.version = private.version_of(tensor) or 0


class ForeignWriters(save_hooks.ForeignSaves, Protocol):
    """Who watches over saves whose memory foreign code may hold (exported_saves.py)."""

    def writes(
        self, handle: save_hooks.Handle, tensor: Tensor, backward: Backward, *, explained: bool
    ) -> tuple[Write, ...]:
        """Who changed the bytes of a save that is being read."""


class Memory:
    """Of this process."""

    def __init__(self) -> None:
        self.recent: list[Record] = []
        """Writes to tensors in the graph, oldest first: they move the version counter of whatever was saved of them."""
        self.limit = RECENT
        self.views: deque[tuple[int, str, Place | None]] = deque(maxlen=RECENT)
        self.accumulated: deque[tuple[int, Place | None]] = deque(maxlen=RECENT)
        """Where `backward()` was called, with the moment at its end."""
        self.rereads: LiveSaves[Reread] = LiveSaves(int)
        """Memory that is read again though no handle of ours keeps it: writes to it are remembered as well."""
        self.aliases: ForeignWriters | None = None
        """Who watches over saves whose memory foreign code may hold, where contents are watched."""
        self.thread = Thread()
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""
        self._pruning = threading.Lock()

    def prune(self, needed: Callable[[int], bool]) -> None:
        """Called when `recent` has outgrown `limit`: keep the newest, and those whose storage is `needed`.

        The limit then doubles what is left, so that pruning costs each write a constant share. Other threads go on
        appending; one that comes here as well leaves the pruning to the first.
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
        """Remember writes to this memory while `reread` lives."""
        self.rereads.unsorted.append(ref(reread))
        if len(self.rereads.unsorted) > self.rereads.limit:
            self.rereads.sweep()

    def is_reread(self, key: int) -> bool:
        """Whether writes to a storage are to be remembered though nothing of ours was saved of it."""
        return bool((self.rereads.unsorted or self.rereads.by_storage) and self.rereads.at(key))

    def forget(self) -> None:
        """Drop what is not kept per thread."""
        self.recent.clear()
        self.limit = RECENT
        self.views.clear()
        self.accumulated.clear()
