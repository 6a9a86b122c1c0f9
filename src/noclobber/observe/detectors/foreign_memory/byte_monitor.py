"""Compares the bytes of live saves that foreign code can reach, line by line, to find where and when they changed."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple
from weakref import ref

from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.records import Record
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import fingerprint
from noclobber.observe.witness.layout import geometry, may_touch

SHARE = 0.2
"""The share of the running time that comparing may take."""
SAVED_UP = 0.25
"""Unused seconds of comparing that may be kept for later."""
AT_FIRST = 0.05
"""Seconds of comparing that are available at the start."""
_MOST_DEAR = 4
"""How many stretches in a row may take longer than there is time for: no more are looked at after a line."""
_BYTES_A_SECOND = 5e9
"""The guessed speed of a comparison, until the first one has been timed."""

Name = tuple[object, ...]
"""Identifies a stretch: the storage, the offset, the shape, the strides and the dtype."""
Writes = tuple[tuple[Record, int], ...]
"""Writes that torch saw, each with the version before it."""


class ChangedBytes(NamedTuple):
    """Bytes were found changed after the line at `place`. They were last seen unchanged after the line at `since`.

    `since` is None if they were unchanged just before that line. `seen` is True if a write that torch saw, or a moved
    version, explains the change.
    """

    place: Place | None
    since: Place | None
    seen: bool = False
    node: int = graph.UNNUMBERED
    """The sequence number of the thread's next autograd node after that line; the highest if it is not known."""


class Stretch:
    """A stretch of memory that live saves show: the last fingerprint of its bytes, and where the bytes changed.

    The keys of `changes` are the fingerprints before each change: an entry holds for every save of those bytes.
    """

    __slots__ = ("changes", "compared", "cost", "digest", "handles", "key", "marked", "version", "whole", "writes")

    def __init__(self, handle: Handle, key: int, digest: int) -> None:
        self.key = key
        self.cost = storages.memory_of(handle.alias).nbytes / _BYTES_A_SECOND
        self.digest = digest
        self.handles: list[ref[Handle]] = []
        self.changes: dict[int, ChangedBytes] = {}
        self.whole: Place | None = None
        self.compared = 0
        self.mark(handle)

    def handle(self) -> Handle | None:
        """Return a live save that is still on this storage, the newest; None if none is left. An alias can be moved."""
        for reference in reversed(self.handles):
            handle = reference()
            if handle is not None and storages.storage_key(handle.alias) == self.key:
                return handle
            with contextlib.suppress(ValueError):  # another thread may have removed it
                self.handles.remove(reference)
        return None

    def mark(self, handle: Handle) -> None:
        """Remember the writes to this save that torch has seen so far."""
        self.marked = ref(handle)
        self.version, self.writes = _marks(handle)

    def seen(self) -> bool:
        """Return True if torch has seen a write since `mark` that may have changed these bytes."""
        handle, version, before = self.marked(), self.version, self.writes
        if handle is None:
            handle = self.handle()
            if handle is None:
                return False
            version, before = handle.version, ()
        current, writes = _marks(handle)
        new = writes[len(before) :] or (writes[-1:] if writes[-1:] != before[-1:] else ())
        return version != current or any(may_touch(handle.alias, one[0].geometry) for one in new)

    def add(self, handle: Handle) -> None:
        """Add a save of these bytes. Drop the changes that no live save can ask for."""
        self.handles.append(ref(handle))
        if len(self.changes) > 64 and len(self.changes) > 2 * len(self.handles):
            self.handles = [reference for reference in self.handles if reference() is not None]
            asked = {save.digest for reference in self.handles if (save := reference()) is not None}
            self.changes = {digest: change for digest, change in self.changes.copy().items() if digest in asked}


class ByteMonitor:
    """Compares the stretches whose memory is handed out, as often as SHARE of the running time allows."""

    def __init__(self, is_out: Callable[[int], bool]) -> None:
        self._is_out = is_out
        self._known: dict[Name, Stretch] = {}
        self._watched: OrderedDict[Name, Stretch] = OrderedDict()
        """The one that waits longest for its turn is the first."""
        self._rounds = 1
        self._credit = AT_FIRST
        self._counted = perf_counter()

    def __bool__(self) -> bool:
        return bool(self._watched)

    def watch(self, handle: Handle, key: int, here: Place | None, *, fresh: bool) -> bool:
        """Compare a save from now on; return False if that is impossible. `fresh`: its fingerprint was just taken."""
        digest = handle.digest
        if not isinstance(digest, int) or not handle.alias.numel():
            return False
        name = _name(handle)
        stretch = self._known.get(name)
        if stretch is None or stretch.handle() is None:
            if len(self._known) > 2 * len(self._watched) + 64:
                self._known = {name: one for name, one in self._known.copy().items() if one.handle() is not None}
            stretch = self._known[name] = Stretch(handle, key, digest)
        now = digest if fresh else self._now(stretch, handle)
        if now is None:
            stretch.whole = stretch.whole or handle.place
        else:
            if now != stretch.digest:
                before = None if stretch.compared == self._rounds else stretch.whole or handle.place
                self._changed(stretch, handle, now, ChangedBytes(here, before))
            stretch.compared, stretch.whole = self._rounds, here
        stretch.add(handle)
        self._watched[name] = stretch
        return True

    def passed(self, place: Place | None) -> bool:
        """Compare stretches after the line at `place` has run, in turn, as many as there is time for. Return False once
        nothing is left to compare."""
        self._earn()
        self._rounds += 1
        begin = now = self._counted
        dear, until = 0, begin + self._credit
        with modes.plain():
            for _ in range(len(self._watched)):
                if now >= until or dear == _MOST_DEAR or (turn := self._next()) is None:
                    break
                name, stretch = turn
                if stretch.cost > until - now:
                    dear += 1
                    continue
                if not self._compare(stretch, place):
                    self._watched.pop(name, None)
                before, now = now, perf_counter()
                stretch.cost = now - before
        self._credit -= now - begin
        return bool(self._watched)

    def _next(self) -> tuple[Name, Stretch] | None:
        """Return the stretch that waits longest for its turn, and give it the last place; None if there is none."""
        while self._watched:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread has changed them
                name = next(iter(self._watched))
                self._watched.move_to_end(name)
                return name, self._watched[name]
        return None

    def change(self, handle: Handle, here: Place | None) -> ChangedBytes | None:
        """Return where the bytes of a save that is being read changed; None if that is not known."""
        stretch = self._known.get(_name(handle)) if isinstance(handle.digest, int) else None
        if stretch is None or not isinstance(handle.digest, int) or stretch.handle() is None:
            return None  # the memory of saves that are gone may be another tensor's now
        known = stretch.changes.get(handle.digest)
        if known is not None or stretch.digest != handle.digest:
            return known
        return ChangedBytes(here, None if stretch.compared == self._rounds else stretch.whole, stretch.seen())

    def drop(self, handle: Handle) -> None:
        self._known.pop(_name(handle), None)
        self._watched.pop(_name(handle), None)

    def forget(self) -> None:
        self._known, self._watched = {}, OrderedDict()

    def _earn(self) -> None:
        now = perf_counter()
        self._credit = min(SAVED_UP, self._credit + SHARE * (now - self._counted))
        self._counted = now

    def _now(self, stretch: Stretch, handle: Handle) -> int | None:
        """Return the fingerprint as it is now; None if taking it costs too much, or if the bytes cannot be read."""
        self._earn()
        if stretch.cost > self._credit:
            return None
        with modes.plain():
            digest = fingerprint(handle.alias)
        stretch.cost = perf_counter() - self._counted
        self._credit -= stretch.cost
        return digest if isinstance(digest, int) else None

    def _compare(self, stretch: Stretch, place: Place | None) -> bool:
        handle = stretch.handle()
        digest = None if handle is None else fingerprint(handle.alias)
        if handle is None or not isinstance(digest, int):
            return False
        if digest != stretch.digest:
            before = None if stretch.compared == self._rounds - 1 else stretch.whole
            self._changed(stretch, handle, digest, ChangedBytes(place, before))
        else:
            stretch.mark(handle)
        stretch.compared, stretch.whole = self._rounds, place
        # Asked last, so that memory which was handed out during this line only is compared once.
        return self._is_out(stretch.key)

    def _changed(self, stretch: Stretch, handle: Handle, digest: int, change: ChangedBytes) -> None:
        stretch.changes[stretch.digest] = change._replace(seen=stretch.seen(), node=engine_state.next_node())
        stretch.changes.pop(digest, None)
        stretch.digest = digest
        stretch.mark(handle)


def _name(handle: Handle) -> Name:
    alias = handle.alias
    return (storages.storage_key(alias), *geometry(alias))


def _marks(handle: Handle) -> tuple[int, Writes]:
    return int(handle.alias._version), tuple(handle.writes)
