"""What runs on every write, as closures over as little as possible: a few attribute reads and an append."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import torch

from noclobber.model.clobber import LiveSaves
from noclobber.observe import internals
from noclobber.observe.memory import Memory
from noclobber.observe.records import Backward, Record, record
from noclobber.observe.saves import Handle
from noclobber.observe.sites import place_of
from noclobber.observe.writes import Written


def every_write(
    memory: Memory, backwards: list[Backward], without_storage: Callable[[], None]
) -> Callable[[Written, torch.Tensor], None]:
    """For `install`: remember every write."""
    frame_of, storage_key, recent, thread = sys._getframe, internals.storage_key, memory.recent, memory.thread

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None:
            without_storage()
            return
        recent.append(record(written, tensor, key, place_of(frame_of(2)), thread.step, len(backwards)))
        if len(recent) > memory.limit:
            memory.prune(lambda key: False)

    return before


class Careful(Protocol):
    """Who says whether every write must be looked at, as one may have to be stopped or counts no version."""

    careful: int


def writes_to_saves(
    live: LiveSaves[Handle],
    memory: Memory,
    backwards: list[Backward],
    asked: Careful,
    met: Callable[[list[Handle], torch.Tensor, Record], None],
    without_storage: Callable[[], None],
) -> Callable[[Written, torch.Tensor], None]:
    """For `watch`: hand a write to `met` where its storage has live saves.

    A tensor in the graph shares its version counter with what was saved of it, so remembering the write is enough: the
    moved version will lead to it. One made from `.data` may have a counter of its own.
    """
    frame_of, unsorted, recent, thread = sys._getframe, live.unsorted, memory.recent, memory.thread
    storage_key, plain = internals.storage_key, torch.Tensor

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None:
            without_storage()
            return
        in_graph = tensor.requires_grad
        if not in_graph or type(tensor) is not plain or written.uncounted or asked.careful or written.detaches:
            if unsorted:
                live.sort()
            if key in live.by_storage and (handles := live.at(key)):
                met(handles, tensor, record(written, tensor, key, place_of(frame_of(2)), thread.step, len(backwards)))
                return
            if not in_graph:
                return
        recent.append(record(written, tensor, key, place_of(frame_of(2)), thread.step, len(backwards)))
        if len(recent) > memory.limit:
            memory.prune(lambda key: bool(live.at(key)))

    return before
