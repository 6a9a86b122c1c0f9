"""What was written to memory that no handle of ours keeps and that was read again: from the write log, as a tale."""

from __future__ import annotations

from collections.abc import Iterable

from noclobber.model.events import Tensor, Write
from noclobber.observe.core.history import Memory, Reread
from noclobber.observe.core.records import Record
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import private

MOST_CAUSES = 8
"""Writes told for one region, the first ones."""


def since(memory: Memory, begin: int, until: int | None = None) -> list[Record]:
    """The remembered writes between two moments, oldest first."""
    found: list[Record] = []
    for one in reversed(memory.recent):
        if one.moment < begin:
            break
        if until is None or one.moment < until:
            found.append(one)
    return found[::-1]


def writes_to(reread: Reread, records: Iterable[Record], tensor: Tensor, current: int) -> tuple[Write, ...]:
    """The model's writes to one memory, of which `tensor` was read; `current` is its version now.

    A write through `.data` or another alias counts on a counter of its own, so the version before it is taken from the
    writes around it.
    """
    entries, version = [], reread.version
    for record in records:
        if record.key == reread.alias:
            if record.version is not None and version <= record.version <= current:
                version = record.version
            entries.append((record, version))
    return clobbers.writes_of(entries, current, tensor)


def writes_to_any(rereads: Iterable[Reread], records: list[Record]) -> tuple[Write, ...]:
    """The model's writes to several memories in the order they were made, one for each line that wrote."""
    found: dict[object, tuple[int, Write]] = {}
    for reread in rereads:
        tensor = reread.tensor()
        numbers = [index for index, one in enumerate(records) if one.key == reread.alias]
        if tensor is None or not numbers:
            continue
        known = clobbers.tensor_of(tensor, reread.alias)
        writes = writes_to(reread, [records[index] for index in numbers], known, private.version_of(tensor) or 0)
        for index, write in zip(numbers, writes, strict=True):
            place = records[index].place
            if place not in found or found[place][0] > index:
                found[place] = (index, write)
    return tuple(write for _, write in sorted(found.values(), key=lambda one: one[0])[:MOST_CAUSES])
