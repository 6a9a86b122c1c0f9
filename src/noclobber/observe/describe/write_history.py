"""The writes to memory that no handle keeps and that was read again, from the write log."""

from __future__ import annotations

from collections.abc import Iterable

from noclobber.model.events import Tensor, Write
from noclobber.observe.core.history import Memory, Reread
from noclobber.observe.core.records import Record
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import private

MOST_CAUSES = 8
"""Writes that are reported for one region; the first are kept."""


def since(memory: Memory, begin: int, until: int | None = None) -> list[Record]:
    """Return the remembered writes from one moment until before another, oldest first. None: until now."""
    found: list[Record] = []
    for record in reversed(memory.recent):
        if record.moment < begin:
            break
        if until is None or record.moment < until:
            found.append(record)
    return found[::-1]


def writes_to(reread: Reread, records: Iterable[Record], tensor: Tensor, current: int) -> tuple[Write, ...]:
    """Return the model's writes to memory that was read as `tensor`; `current` is the version now.

    A write through `.data` or another alias moves another version counter, so the version before it is taken from the
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
    """Return the model's writes to several memories, oldest first: one per line that wrote, at most MOST_CAUSES."""
    found: dict[object, tuple[int, Write]] = {}
    for reread in rereads:
        tensor = reread.tensor()
        numbers = [index for index, record in enumerate(records) if record.key == reread.alias]
        if tensor is None or not numbers:
            continue
        known = clobbers.tensor_of(tensor, reread.alias)
        writes = writes_to(reread, [records[index] for index in numbers], known, private.version_of(tensor) or 0)
        for index, write in zip(numbers, writes, strict=True):
            place = records[index].place
            if place not in found or found[place][0] > index:
                found[place] = (index, write)
    return tuple(write for _, write in sorted(found.values(), key=lambda entry: entry[0])[:MOST_CAUSES])
