"""The live table of saves by storage: what is kept, what is dropped, bounded memory, for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import call
from threading import Lock, get_ident
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from noclobber.model.forks import unlocked_in_child

FEWEST_BEFORE_SWEEP = 512
"""Unsorted handles kept before the dead among them are looked for."""


class Aliased(Protocol):
    """What a handle must have: something that stands for the storage it keeps alive."""

    alias: Any


Handle = TypeVar("Handle", bound=Aliased)


class Beside(Protocol):
    """What knows of saves that have no handle yet (the native part, observe/native/)."""

    def hand_over(self, storage: int | None, /) -> None:
        """Append a handle of every save on a storage, or of all saves (None), to `unsorted`."""

    def alive(self) -> int:
        """Return how many saves have no handle."""


class LiveSaves(Generic[Handle]):
    """The handles of saves that autograd still holds, by storage.

    A handle dies when its save is released (torch 2.13: after `backward()`, on graph death, or node by node
    in a partial backward), so weak references are enough. Adding one is a list append; it is sorted by storage only
    when a write asks, and swept when the list has doubled: memory follows the saves alive, not the steps run.

    Any thread may append to `unsorted` and look into `by_storage` at any time, without a lock. Whatever moves or drops
    references holds the lock. A garbage collection may start anywhere in there, and run code of the program that saves
    and writes: a call that finds its own thread inside already looks, and moves nothing.
    """

    def __init__(self, storage_of: Callable[[Any], int | None]) -> None:
        self._storage_of = storage_of
        self.by_storage: dict[int, list[ref[Handle]]] = {}
        """The sorted part; a storage without an entry here, once sorted, has no live save."""
        self.unsorted: list[ref[Handle]] = []
        """Append `weakref.ref(handle)` here, then call `sweep` once it is longer than `limit`."""
        self.limit = FEWEST_BEFORE_SWEEP
        self.alive = 0
        """How many handles were alive at the last sweep."""
        self.beside: Beside | None = None
        """What knows of further saves; None if all have handles."""
        self.tell: Callable[[dict[int, list[ref[Handle]]]], object] | None = None
        """Hears of `by_storage` whenever it may have changed; None if nobody does."""
        self._filed = 0
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""
        self._lock = Lock()
        self._inside: int | None = None

    def sort(self) -> None:
        """File what was added since the last call under its storage."""
        if self._inside == get_ident():
            return
        with self._lock:
            self._inside = get_ident()
            try:
                self._file()
            finally:
                self._settled()

    def any(self) -> bool:
        """Whether there is a live save at all. If there is none, what is left of dead ones goes."""
        if self.beside is not None and self.beside.alive():
            return True
        if not (self.unsorted or self.by_storage):
            return False
        if self._inside == get_ident():
            return True
        with self._lock:
            self._inside = get_ident()
            try:
                unsorted, count = self.unsorted, len(self.unsorted)
                if any(map(call, chain(unsorted[:count], chain.from_iterable(self.by_storage.values())))):
                    return True  # a handle that lives is true
                del unsorted[:count]
                self.by_storage.clear()
                self._filed = 0
                return bool(unsorted)
            finally:
                self._settled()

    def at(self, storage: int) -> list[Handle]:
        """The live handles on a storage, in no particular order."""
        if self.beside is not None:
            self.beside.hand_over(storage)
        if self._inside == get_ident():
            return self._seen_at(storage)
        with self._lock:
            self._inside = get_ident()
            try:
                if self.unsorted:
                    self._file()
                bucket = self.by_storage.get(storage)
                if bucket is None:
                    return []
                alive = [handle for reference in bucket if (handle := reference()) is not None]
                if not alive:
                    del self.by_storage[storage]
                elif len(alive) < len(bucket):
                    self.by_storage[storage] = [reference for reference in bucket if reference() is not None]
                return alive
            finally:
                self._settled()

    def file_anew(self) -> None:
        """Storages may lie elsewhere than when their handles were filed."""
        if self.beside is not None:
            self.beside.hand_over(None)
        if self._inside == get_ident():
            return
        with self._lock:
            self._inside = get_ident()
            try:
                self.unsorted += [reference for bucket in self.by_storage.values() for reference in bucket]
                self.by_storage.clear()
                self._filed = 0
            finally:
                self._settled()

    def moved(self, handle: Handle, storage: int | None) -> None:
        """File a handle again that lay on `storage`, and whose alias may be another now."""
        if self._storage_of(handle.alias) == storage:
            return
        self.unsorted.append(ref(handle))  # first, so that other threads always find it
        if storage is None or self._inside == get_ident():
            return
        with self._lock:
            self._inside = get_ident()
            try:
                others = [one for one in self.by_storage.get(storage, ()) if one() is not handle]
                if others:
                    self.by_storage[storage] = others
                else:
                    self.by_storage.pop(storage, None)
            finally:
                self._settled()

    def all(self) -> list[Handle]:
        """All live handles, in no particular order."""
        if self.beside is not None:
            self.beside.hand_over(None)
        references = [*self.unsorted, *(one for bucket in list(self.by_storage.values()) for one in bucket)]
        return [handle for reference in references if (handle := reference()) is not None]

    def sweep(self) -> None:
        """Drop dead saves; the thread that adds calls this when `unsorted` is larger than `limit`."""
        if self._inside == get_ident():
            return
        with self._lock:
            self._inside = get_ident()
            try:
                self._sweep()
            finally:
                self._settled()

    # -- with the lock held ------------------------------------------------------------------------------------------

    def _settled(self) -> None:
        self._inside = None
        if self.tell is not None:
            self.tell(self.by_storage)

    def _file(self) -> None:
        # What is being filed stays in `unsorted` until all of it is: another thread that finds nothing there relies on
        # `by_storage`. Threads append behind it meanwhile.
        unsorted, by_storage, storage_of = self.unsorted, self.by_storage, self._storage_of
        while count := len(unsorted):
            done = 0
            try:
                for reference in unsorted[:count]:
                    done += 1
                    handle = reference()
                    storage = None if handle is None else storage_of(handle.alias)
                    if storage is not None:
                        self._filed += 1
                        bucket = by_storage.get(storage)
                        if bucket is None:
                            by_storage[storage] = [reference]
                        else:
                            bucket.append(reference)
            finally:
                del unsorted[:done]
        if self._filed > self.limit:
            self._sweep()

    def _sweep(self) -> None:
        count = len(self.unsorted)
        self.unsorted[:count] = [reference for reference in self.unsorted[:count] if reference() is not None]
        self.by_storage = {
            storage: alive
            for storage, bucket in self.by_storage.items()
            if (alive := [reference for reference in bucket if reference() is not None])
        }
        self._filed = sum(map(len, self.by_storage.values()))
        self.alive = len(self.unsorted) + self._filed
        self.limit = max(FEWEST_BEFORE_SWEEP, 2 * self.alive)

    def _seen_at(self, storage: int) -> list[Handle]:
        filed = [handle for reference in self.by_storage.get(storage, ()) if (handle := reference()) is not None]
        new = [handle for reference in self.unsorted.copy() if (handle := reference()) is not None]
        return filed + [one for one in new if one not in filed and self._storage_of(one.alias) == storage]
