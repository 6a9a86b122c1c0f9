"""Clobber, and the live table of saves by storage: what is kept, what is dropped, bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from noclobber.model.events import Read, Save, Write

FEWEST_BEFORE_SWEEP = 4096
"""Unsorted handles kept before the dead among them are looked for."""


@dataclass(frozen=True, slots=True)
class Clobber:
    """A save, the writes that changed its bytes after it was saved, and the read that then got other bytes.

    `current` is the version at read; equal to `save.version` where nothing counted the write (PyTorch stays silent).
    `message` is the error that PyTorch raises, None where it stays silent. `restored`: something has put the bytes back
    that were saved, as fingerprints show.
    """

    save: Save
    writes: tuple[Write, ...]
    read: Read
    current: int
    message: str | None = None
    restored: bool = False

    @property
    def raised(self) -> bool:
        """Whether PyTorch itself notices."""
        return self.message is not None


class Aliased(Protocol):
    """What a handle must have: something that stands for the storage it keeps alive."""

    alias: Any


Handle = TypeVar("Handle", bound=Aliased)


class LiveSaves(Generic[Handle]):
    """The handles of saves that autograd still holds, by storage.

    A handle dies when its save is released (torch 2.13: after `backward()`, on graph death, or node by node
    in a partial backward), so weak references are enough. Adding one is a list append; it is sorted by storage only
    when a write asks, and swept when the list has doubled: memory follows the saves alive, not the steps run.
    """

    def __init__(self, storage_of: Callable[[Any], int | None]) -> None:
        self._storage_of = storage_of
        self.by_storage: dict[int, list[ref[Handle]]] = {}
        """The sorted part; a storage without an entry here, once sorted, has no live save."""
        self.unsorted: list[ref[Handle]] = []
        """Append `weakref.ref(handle)` here, then call `sweep` once it is longer than `limit`."""
        self.limit = FEWEST_BEFORE_SWEEP
        self._filed = 0

    def sort(self) -> None:
        """File what was added since the last call under its storage."""
        unsorted, by_storage, storage_of = self.unsorted, self.by_storage, self._storage_of
        while unsorted:
            reference = unsorted.pop()
            handle = reference()
            if handle is not None:
                storage = storage_of(handle.alias)
                if storage is None:
                    continue
                self._filed += 1
                bucket = by_storage.get(storage)
                if bucket is None:
                    by_storage[storage] = [reference]
                else:
                    bucket.append(reference)
        if self._filed > self.limit:
            self.sweep()

    def any(self) -> bool:
        """Whether there may be a live save at all."""
        if self.unsorted:
            self.sort()
        return bool(self.by_storage)

    def at(self, storage: int) -> list[Handle]:
        """The live handles on a storage, in no particular order."""
        if self.unsorted:
            self.sort()
        bucket = self.by_storage.get(storage)
        if bucket is None:
            return []
        alive = [handle for reference in bucket if (handle := reference()) is not None]
        if not alive:
            del self.by_storage[storage]
        elif len(alive) < len(bucket):
            self.by_storage[storage] = [reference for reference in bucket if reference() is not None]
        return alive

    def file_anew(self) -> None:
        """Storages may lie elsewhere than when their handles were filed."""
        self.unsorted += (reference for bucket in self.by_storage.values() for reference in bucket)
        self.by_storage.clear()
        self._filed = 0

    def sweep(self) -> None:
        """Drop what died; called by the one who adds when `unsorted` has outgrown `limit`."""
        self.unsorted[:] = [reference for reference in self.unsorted if reference() is not None]
        self.by_storage = {
            storage: alive
            for storage, bucket in self.by_storage.items()
            if (alive := [reference for reference in bucket if reference() is not None])
        }
        self._filed = sum(map(len, self.by_storage.values()))
        self.limit = max(FEWEST_BEFORE_SWEEP, 2 * (len(self.unsorted) + self._filed))
