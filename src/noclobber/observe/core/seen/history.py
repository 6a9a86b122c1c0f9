"""What later findings may need: recent writes and views, and memory that will be read again. Its size is bounded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from typing import Protocol
from weakref import ref

import torch
from torch.autograd.graph import Node

from noclobber.model.forks import lock
from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.live_saves import LiveSaves
from noclobber.observe.core.seen.collector import MANY, leave_out
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.hot_path import HotPath
from noclobber.observe.core.seen.records import Backward, Record, Stepped, looked_at, moment
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.core.seen.thread_state import Thread
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import span_of

RECENT = 8192
"""Writes that are kept, needed or not, before those that no finding can need are dropped."""

MOST_LOOKS = 16
"""How often a line that writes to tensors in the graph is asked whether it meets a live save."""
ANYWHERE = 0
"""Stands for all storages, where nobody knows yet what will be read again."""
_MOST_VIEWS = 256
"""Storages of views that custom Functions returned: more are not remembered at a time."""


class ForeignWriters(Protocol):
    """What watches saves whose memory foreign code may hold (exported_saves.py)."""

    @property
    def handed(self) -> Mapping[int, object]:
        """The storages that foreign code may hold, by key; the same object for good, and empty most of the time."""

    def writes(
        self, handle: Handle, made: Node | None, tensor: Tensor, backward: Backward, *, explained: bool
    ) -> tuple[Write, ...]:
        """Return the writes to the bytes of a save that is being read which torch did not see. `made` is the node that
        made the tensor, where it is known. `explained` says that torch saw a write."""


class _Reader(ref[object]):
    """What reads storages again, which nobody keeps alive here."""

    __slots__ = ("keys",)
    keys: tuple[int, ...]


class Memory:
    """What is remembered in this process."""

    def __init__(self) -> None:
        self.live: LiveSaves[Handle] = LiveSaves(storages.storage_key, span_of)
        """The saves that autograd holds."""
        self.logged: list[Record] = []
        """The writes that Python has logged."""
        self.limit = RECENT
        self.steps: deque[Stepped] = deque()
        """Steps of optimizers that are not in `logged` yet."""
        self.several: deque[tuple[int, str, Place | None]] = deque(maxlen=RECENT)
        """The operators that returned several views: the number of the node, the name, the place."""
        self.native: HotPath | None = None
        """The native part while it takes writes and saves; else None."""
        self.accumulated: deque[tuple[int, Place | None]] = deque(maxlen=RECENT)
        """The ends of `backward()` calls: the moment, and where the call was made."""
        self.followed: dict[int, storages.StorageRef] = {}
        """The storages of views that custom Functions returned of tensors outside of the graph: all writes to these are
        remembered, with gradients off too. It is always the same object, so callers may keep it."""
        self.reread: dict[int, int] = {}
        """The storages that will be read again although no handle keeps them, and by how many: what checkpointed
        regions and hooks of the program read, and what custom Functions are given whose forward is under way. Writes
        to these are remembered too. It is always the same object, so callers may keep it."""
        self._readers: set[_Reader] = set()
        self._counts: deque[tuple[Iterable[int], int]] = deque()
        """What is still to be counted: storages, and by how many more they are read."""
        self.looks: dict[tuple[int, int], int] = {}
        """How often a line that writes to tensors in the graph is still asked whether it meets a live save, by the id
        of its code and the instruction. It is always the same object, so callers may keep it."""
        self.foreign_writers: ForeignWriters | None = None
        """What watches saves whose memory foreign code may hold; None if contents are not watched."""
        self.began: int | None = 0
        """The moment when seeing last began anew. What wrote to older saves may not have been seen. None until then."""
        self.thread = Thread()
        self._pruning = lock()
        self._counting = lock()

    def writes_since(self, begin: int, key: int | None) -> list[Record]:
        """Return the remembered writes to a storage from a moment on, oldest first."""
        logged, native = self.logged, self.native
        if native is not None and key is not None and not self.steps and (not logged or logged[-1].moment < begin):
            return native.writes_since(begin, key)
        found = takewhile(lambda one: one.moment >= begin, reversed(self.recent))
        return [one for one in found if one.key == key][::-1]

    @property
    def recent(self) -> list[Record]:
        """Writes, oldest first. A write to a tensor in the graph moves the version counter of all saves of it."""
        taken = list(self.native.records()) if self.native is not None else []
        with suppress(IndexError):  # other threads take from them too
            while self.steps:
                taken += self.steps.popleft().records()
        if taken:
            self.logged += taken
            moments = [one.moment for one in self.logged[-len(taken) - 1 :]]
            if moments != sorted(moments):
                self.logged.sort(key=attrgetter("moment"))
            if len(self.logged) > self.limit:
                self.prune(newest=max(RECENT // 4, len(taken)))
        return self.logged

    def log(self, record: Record) -> None:
        self.logged.append(record)
        if len(self.logged) > MANY:
            leave_out(record)
            if len(self.logged) > self.limit:
                self.prune()

    @property
    def views(self) -> deque[tuple[int, str, Place | None]]:
        """The operators that returned several views, oldest first within a thread."""
        if self.native is not None:
            self.several.extend(self.native.views())
        return self.several

    def place_of(self, node: int) -> Place | None:
        """Return where a node of the calling thread last saved; None if that is not known (any more)."""
        place = self.native.place_of(node) if self.native is not None else None
        places = (known for number, known in reversed(self.thread.saves) if number == node)
        return next(places, None) if place is None else place

    def stepped(self, one: Stepped) -> None:
        """Remember a step of an optimizer, and as many before it as make RECENT writes if they are as large."""
        self.steps.append(one)
        most = RECENT // max(1, len(one.keys))
        with suppress(IndexError):  # another thread takes from them too
            while len(self.steps) > max(1, most):
                self.steps.popleft()

    def prune(self, newest: int = RECENT // 4) -> None:
        """Keep the `newest` writes and those that a finding may need. Called when `logged` is longer than `limit`.

        The limit then becomes twice what is left, so pruning costs a constant time per write. Other threads may append
        meanwhile. A call while another one prunes returns at once.
        """
        if self._pruning._is_owned() or not self._pruning.acquire(blocking=False):
            return
        try:
            logged, count = self.logged, len(self.logged)
            old, new = logged[: max(count - newest, 0)], logged[max(count - newest, 0) : count]
            keys = {record.key for record in old}  # a finding may need the writes there, however old they are
            needed = {key: bool(self.live.at(key)) or self.is_reread(key) for key in keys}
            logged[:count] = [record for record in old if needed[record.key]] + new
            self.limit = max(RECENT, 2 * len(logged))
        finally:
            self._pruning.release()

    def returned_by_function(self, tensor: torch.Tensor) -> None:
        """Remember the writes to the memory of what a custom Function returned, if it is a view, while it is there."""
        key = storages.storage_key(tensor)
        known = self.followed.get(key) if key is not None else None
        if key is not None and (known is None or known.expired()) and tensor_state.is_view_of_function(tensor):
            for other in [one for one, storage in self.followed.copy().items() if storage.expired()]:
                self.followed.pop(other, None)
            if len(self.followed) < _MOST_VIEWS:
                self.followed[key] = storages.storage_ref(tensor)

    def read_again(self, keys: Iterable[int], more: int) -> None:
        """Count one reader more (1) of these storages, or one less (-1)."""
        if self._counting._is_owned():
            self._counts.append((keys, more))  # a garbage collection has led here from the loop below, which goes on
            return
        with self._counting:
            reread = self.reread
            while True:
                for key in keys:
                    reread[key] = count = reread.get(key, 0) + more
                    if count <= 0:
                        del reread[key]
                if not self._counts:
                    return
                keys, more = self._counts.popleft()

    def read_again_by(self, reader: object, keys: Iterable[int]) -> None:
        """Remember the writes to these storages as long as `reader` lives."""
        one = _Reader(reader, self._gone)
        one.keys = tuple(keys)
        self._readers.add(one)
        self.read_again(one.keys, 1)

    def _gone(self, reader: _Reader) -> None:
        self._readers.discard(reader)
        self.read_again(reader.keys, -1)

    def is_reread(self, key: int) -> bool:
        """Return True if writes to a storage must be remembered although no save of ours lies on it."""
        return bool(self.reread) and (key in self.reread or ANYWHERE in self.reread)

    def begin(self) -> None:
        """Note that seeing begins, or goes on where nothing was missed."""
        if self.began is None:
            self.began = moment()

    def end(self) -> None:
        """Note that some writes will not be seen from now on. Called before that is so."""
        self.began = None

    def forget(self) -> None:
        """Drop the writes, views and ends of backward calls. What belongs to threads stays."""
        self.logged.clear()
        self.limit = RECENT
        self.steps.clear()
        self.several.clear()
        self.accumulated.clear()
        self.followed.clear()
        self.reread.clear()
        self.reread.update(Counter(key for reader in list(self._readers) for key in reader.keys))
        self.looks.clear()
        looked_at.clear()
