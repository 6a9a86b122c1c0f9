"""The live table of saves by storage and byte range: what is kept, what is dropped, for any number of threads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from operator import call, itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from noclobber.model.forks import lock

FEWEST_BEFORE_SWEEP = 512
"""Unsorted handles kept before the dead among them are looked for."""

Span = tuple[int, int]
"""The first byte of a storage that a tensor shows, and the byte behind the last."""
EVERYWHERE: Span = (0, (1 << 63) - 1)
"""The span of what may show any byte."""


def meet(one: Span, other: Span) -> bool:
    """Whether two spans have a byte in common."""
    return one[0] < other[1] and other[0] < one[1]


class Aliased(Protocol):
    """What a handle must have: something that stands for the storage it keeps alive."""

    @property
    def alias(self) -> Any: ...


Handle = TypeVar("Handle", bound=Aliased)
Result = TypeVar("Result")


class Beside(Protocol):
    """What knows of saves that have no handle yet (the native part, observe/native/)."""

    def hand_over(self, storage: int | None, /) -> None:
        """Append a handle of every save on a storage, or of all saves (None), to `unsorted`."""

    def meet(self, storage: int, tensor: Any, begin: int, end: int, /) -> bool:
        """Append a handle of every save that a write of a tensor to these bytes of a storage meets to `unsorted`.

        Returns True if another save shares the tensor's version counter.
        """

    def alive(self) -> int:
        """Return how many saves have no handle."""


class Met(NamedTuple, Generic[Handle]):
    """The handles that a write meets; and one of the others on the same storage, if there are any."""

    handles: list[Handle]
    other: Handle | None


_begin_of: Callable[[Any], int] = itemgetter(0)


class _Storage(Generic[Handle]):
    """The handles on one storage.

    Those that a write has met lie in rows, one for each power of 2 that is not less than their length in bytes, sorted
    by where they begin. So those that a span meets in a row lie side by side.
    """

    __slots__ = ("new", "rows")

    def __init__(self) -> None:
        self.new: list[ref[Handle]] = []
        """Those that no write has met yet."""
        self.rows: dict[int, list[tuple[int, int, ref[Handle]]]] = {}

    def references(self) -> Iterator[ref[Handle]]:
        return chain(self.new, (one for row in list(self.rows.values()) for _, _, one in row))

    def put(self, reference: ref[Handle], span: Span) -> None:
        begin, end = span
        row = self.rows.setdefault((end - begin).bit_length(), [])
        row.insert(bisect_right(row, begin, key=_begin_of), (begin, end, reference))

    def meets(self, span: Span) -> Met[Handle]:
        """Return the handles in rows whose span meets this one. Drops dead ones on the way."""
        begin, end = span
        met: list[Handle] = []
        other = None
        for size, row in self.rows.items():
            first = bisect_left(row, begin - (1 << size), key=_begin_of)
            last = bisect_left(row, end, first, key=_begin_of)
            alive = [(entry, handle) for entry in row[first:last] if (handle := entry[2]()) is not None]
            if len(alive) < last - first:
                row[first:last] = [entry for entry, _ in alive]
                last = first + len(alive)
            for entry, handle in alive:
                if entry[1] > begin:
                    met.append(handle)
                else:
                    other = other or handle
            while other is None and last < len(row):
                other = row[-1][2]()
                if other is None:
                    row.pop()
            while other is None and first > 0:
                first -= 1
                other = row[first][2]()
                if other is None:
                    del row[first]
        return Met(met, other)

    def remove(self, handle: Handle, span: Span) -> None:
        self.new = [one for one in self.new if one() is not handle]
        begin, end = span
        row = self.rows.get((end - begin).bit_length(), [])
        first, last = bisect_left(row, begin, key=_begin_of), bisect_right(row, begin, key=_begin_of)
        row[first:last] = [entry for entry in row[first:last] if entry[2]() is not handle]

    def sweep(self) -> int:
        """Drop the dead. Returns how many are left."""
        self.new = [one for one in self.new if one() is not None]
        self.rows = {
            size: alive
            for size, row in self.rows.items()
            if (alive := [entry for entry in row if entry[2]() is not None])
        }
        return len(self.new) + sum(map(len, self.rows.values()))


class LiveSaves(Generic[Handle]):
    """The handles of saves that autograd still holds, by storage, and there by the bytes that they show.

    A handle dies when its save is released (torch 2.13: after `backward()`, on graph death, or node by node
    in a partial backward), so weak references are enough. Adding one is a list append; it is sorted by storage only
    when a write asks, and by its bytes when the first write to its storage meets it. The table is swept when it has
    doubled: memory follows the saves alive, not the steps run.

    Any thread may append to `unsorted` and look into `by_storage` at any time, without a lock. Whatever moves or drops
    references holds the lock. A garbage collection may start anywhere in there, and run code of the program that saves
    and writes: a call that finds its own thread inside already looks, and moves nothing.
    """

    def __init__(self, storage_of: Callable[[Any], int | None], span_of: Callable[[Any], Span]) -> None:
        self._storage_of = storage_of
        self._span_of = span_of
        self.by_storage: dict[int, _Storage[Handle]] = {}
        """The sorted part; a storage without an entry here, once sorted, has no live save."""
        self.unsorted: list[ref[Handle]] = []
        """What `add` appends to; then it calls `sweep` once this is longer than `limit`."""
        self.limit = FEWEST_BEFORE_SWEEP
        self.alive = 0
        """How many handles were alive at the last sweep."""
        self.beside: Beside | None = None
        """What knows of further saves; None if all have handles."""
        self.tell: Callable[[dict[int, _Storage[Handle]]], object] | None = None
        """Hears of `by_storage` whenever it may have changed; None if nobody does."""
        self._filed = 0
        self._lock = lock()

    def _alone(self, work: Callable[..., Result], *args: object) -> Result | None:
        """Do what moves or drops references, with the lock. Returns None at once if this thread does so already."""
        if self._lock._is_owned():  # as `threading.Condition` asks it (3.11 to 3.14)
            return None
        with self._lock:
            try:
                return work(*args)
            finally:
                if self.tell is not None:
                    self.tell(self.by_storage)

    def add(self, handle: Handle) -> None:
        """Take a handle up."""
        self.unsorted.append(ref(handle))
        if len(self.unsorted) > self.limit:
            self.sweep()

    def sort(self) -> None:
        """File what was added since the last call under its storage."""
        self._alone(self._file)

    def any(self) -> bool:
        """Whether there is a live save at all. If there is none, what is left of dead ones goes."""
        if self.beside is not None and self.beside.alive():
            return True
        if not (self.unsorted or self.by_storage):
            return False
        return self._alone(self._any) is not False

    def has(self, storage: int) -> bool:
        """Whether a live handle is on a storage. Saves that have no handle do not count."""
        seen = self._alone(self._has, storage)
        return bool(self._seen_at(storage)) if seen is None else seen

    def at(self, storage: int, span: Span = EVERYWHERE) -> list[Handle]:
        """The live handles on a storage whose span meets this one, in no particular order."""
        if self.beside is not None:
            self.beside.hand_over(storage)
        if not self.unsorted and storage not in self.by_storage:
            return []
        alive = self._alone(self._at, storage, span)
        return self._seen_at(storage) if alive is None else alive

    def meeting(self, storage: int, span: Span, written: Any) -> tuple[Met[Handle], bool]:
        """What a write to a span of a storage meets: the live handles there whose bytes it may touch, and those that no
        write has met yet.

        `written` is what is written, for `beside`: the second result is True if it knows of other saves there whose
        version moves.
        """
        beside = self.beside is not None and self.beside.meet(storage, written, *span)
        met: Met[Handle] | None = self._alone(self._meeting, storage, span)
        return (Met(self._seen_at(storage), None) if met is None else met), beside

    def file_anew(self, storage: int) -> None:
        """The memory of a storage may lie elsewhere than when its handles were filed."""
        if self.beside is not None:
            self.beside.hand_over(storage)
        self._alone(self._unfile, storage)

    def moved(self, handle: Handle, alias: Any) -> None:
        """File a handle again whose alias was this one, and may lie elsewhere now."""
        storage = self._storage_of(alias)
        if self._storage_of(handle.alias) == storage and self._span_of(handle.alias) == self._span_of(alias):
            return
        self.add(handle)  # first, so that other threads always find it
        if storage is not None:
            self._alone(self._remove, handle, storage, self._span_of(alias))

    def all(self) -> list[Handle]:
        """All live handles, in no particular order."""
        if self.beside is not None:
            self.beside.hand_over(None)
        references = self._alone(self._references)
        if references is None:
            references = self._references()
        return [handle for reference in references if (handle := reference()) is not None]

    def sweep(self) -> None:
        """Drop dead saves; the thread that adds calls this when `unsorted` is larger than `limit`."""
        self._alone(self._sweep)

    # -- with the lock held ------------------------------------------------------------------------------------------

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
                            bucket = by_storage[storage] = _Storage()
                        bucket.new.append(reference)
            finally:
                del unsorted[:done]
        if self._filed > self.limit:
            self._sweep()

    def _any(self) -> bool:
        count = len(self.unsorted)
        if any(map(call, self._references())):
            return True  # a handle that lives is true
        del self.unsorted[:count]
        self.by_storage.clear()
        self._filed = 0
        return bool(self.unsorted)

    def _references(self) -> list[ref[Handle]]:
        filed = (bucket.references() for bucket in self.by_storage.values())
        return [*self.unsorted, *chain.from_iterable(filed)]

    def _has(self, storage: int) -> bool:
        self._file()
        bucket = self.by_storage.get(storage)
        if bucket is None:
            return False
        if alive := any(map(call, bucket.references())):
            return alive
        del self.by_storage[storage]
        return False

    def _at(self, storage: int, span: Span) -> list[Handle]:
        self._file()
        bucket = self.by_storage.get(storage)
        if bucket is None:
            return []
        met = bucket.meets(span)
        new = [handle for reference in bucket.new if (handle := reference()) is not None]
        if not new and not met.handles and met.other is None:
            del self.by_storage[storage]
        return met.handles + [one for one in new if span is EVERYWHERE or meet(self._span_of(one.alias), span)]

    def _meeting(self, storage: int, span: Span) -> Met[Handle]:
        self._file()
        bucket = self.by_storage.get(storage)
        if bucket is None:
            return Met([], None)
        met = bucket.meets(span)
        new = bucket.new
        bucket.new = []
        for reference in new:
            if (handle := reference()) is not None:
                met.handles.append(handle)
                bucket.put(reference, self._span_of(handle.alias))
        if not met.handles and met.other is None:
            del self.by_storage[storage]
        return met

    def _unfile(self, storage: int) -> None:
        if (bucket := self.by_storage.get(storage)) is not None:
            self.unsorted += bucket.references()
            del self.by_storage[storage]

    def _remove(self, handle: Handle, storage: int, span: Span) -> None:
        if (bucket := self.by_storage.get(storage)) is not None:
            bucket.remove(handle, span)

    def _sweep(self) -> None:
        count = len(self.unsorted)
        self.unsorted[:count] = [reference for reference in self.unsorted[:count] if reference() is not None]
        left = {storage: bucket.sweep() for storage, bucket in self.by_storage.items()}
        self.by_storage = {storage: bucket for storage, bucket in self.by_storage.items() if left[storage]}
        self._filed = sum(left.values())
        self.alive = len(self.unsorted) + self._filed
        self.limit = max(FEWEST_BEFORE_SWEEP, 2 * self.alive)

    def _seen_at(self, storage: int) -> list[Handle]:
        bucket = self.by_storage.get(storage)
        filed = [] if bucket is None else [one for reference in bucket.references() if (one := reference()) is not None]
        new = [handle for reference in self.unsorted.copy() if (handle := reference()) is not None]
        return filed + [one for one in new if one not in filed and self._storage_of(one.alias) == storage]
