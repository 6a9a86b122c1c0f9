"""The writes to memory that no handle keeps and that was read again, from the write log."""

from __future__ import annotations

from collections.abc import Iterable

from noclobber.model.seen.events import Tensor, Write
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.records import Record
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import tensor_on
from noclobber.observe.witness.witness import Witness

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


def writes_to(reread: Witness, records: Iterable[Record], tensor: Tensor, current: int) -> tuple[Write, ...]:
    """Return the model's writes to memory that was read as `tensor`; `current` is the version now."""
    return clobbers.writes_of(entries_of(reread, records, current), current, tensor)


def entries_of(reread: Witness, records: Iterable[Record], current: int) -> list[tuple[Record, int]]:
    """Return the records of writes to memory, each with the version before it; `current` is the version now.

    A write through `.data` or another alias moves another version counter, so the version before it is taken from the
    writes around it.
    """
    entries, version = [], reread.version
    for record in _of(reread, records):
        if record.version is not None and version <= record.version <= current:
            version = record.version
        entries.append((record, version))
    return entries


def _of(reread: Witness, records: Iterable[Record]) -> list[Record]:
    """Return the records of writes to this memory. The last is where the tensor got other memory (`t.data = u`): after
    that the address may belong to another tensor, as after the memory is gone."""
    found = [record for record in records if record.key == reread.key]
    tensor = reread.tensor()
    if tensor is None and reread.storage.expired():
        return []
    if tensor is not None and storages.storage_key(tensor) != reread.key:
        moves = [index for index, record in enumerate(found) if record.written.only_moves]
        return found[: moves[-1] + 1] if moves else found
    return found


def writes_to_any(rereads: Iterable[Witness], records: list[Record]) -> tuple[Write, ...]:
    """Return the model's writes to several memories, oldest first: one per line that wrote, at most MOST_CAUSES."""
    found: dict[object, tuple[int, Write]] = {}
    for reread in rereads:
        mine = _of(reread, records)
        if not mine:
            continue
        tensor, current = reread.tensor(), 1 + (mine[-1].version or 0)
        if tensor is not None:
            current = tensor_state.version_of(tensor) or 0
        elif (where := mine[-1].geometry) is not None:  # the program has dropped it, and its memory is still there
            with modes.aside():
                tensor = tensor_on(reread.storage, where)
        if tensor is None:
            continue
        known = clobbers.tensor_of(tensor)
        writes = writes_to(reread, mine, known, current)
        for record, write in zip(mine, writes, strict=True):
            if record.place not in found or found[record.place][0] > record.moment:
                found[record.place] = (record.moment, write)
    return tuple(write for _, write in sorted(found.values(), key=lambda entry: entry[0])[:MOST_CAUSES])
