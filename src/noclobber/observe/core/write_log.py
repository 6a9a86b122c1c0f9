"""What runs on every write, as closures over as little as possible: a few attribute reads and an append."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import torch

from noclobber.observe.core.history import Memory
from noclobber.observe.core.records import record
from noclobber.observe.core.sites import place_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.frames import frame_above

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


WITHOUT_STORAGE = "writes to tensors without a storage (sparse, nested)"


def every_write(memory: Memory, without_storage: Callable[[], None]) -> Callable[[Written, torch.Tensor], None]:
    """For `install`: remember every write."""
    frame_of, storage_key, recent, thread = sys._getframe, private.storage_key, memory.recent, memory.thread

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None:
            without_storage()
            return
        recent.append(record(written, tensor, key, place_of(frame_of(1)), thread.step, thread))
        if len(recent) > memory.limit:
            memory.prune(lambda key: False)

    return before


Look = Callable[[Written, torch.Tensor, int, FrameType], object]


def writes_to_saves(recorder: Recorder) -> Callable[[Written, torch.Tensor], Callable[[], object] | None]:
    """For `watch`: a write whose storage has live saves meets them.

    A tensor in the graph shares its version counter with what was saved of it, so remembering the write is enough: the
    moved version will lead to it. One made from `.data` may have a counter of its own.
    """
    live, memory, untold, without_storage = recorder.live, recorder.memory, recorder.untold, recorder.not_seen
    frame_of, unsorted, recent, thread = sys._getframe, live.unsorted, memory.recent, memory.thread
    storage_key, plain, attentive = private.storage_key, torch.Tensor, recorder.attentive
    tracking, taken, meet = torch.is_grad_enabled, untold.taken, recorder.meet

    def before(written: Written, tensor: torch.Tensor) -> Callable[[], object] | None:
        key = storage_key(tensor)
        if key is None:
            without_storage(WITHOUT_STORAGE)
            return None
        untracked = not tracking()
        after = untold.before(written, tensor, key, frame_of(1)) if taken or untracked else None
        if attentive:
            frame = frame_above(2)
            for look in tuple(attentive):
                look(written, tensor, key, frame)
        in_graph = tensor.requires_grad
        counted = in_graph and type(tensor) is plain and not (written.uncounted or written.detaches)
        if not counted or recorder.careful or (untracked and tensor._is_view()):
            if unsorted:
                live.sort()
            if key in live.by_storage and (handles := live.at(key)):
                noted = record(written, tensor, key, place_of(frame_of(1)), thread.step, thread)
                entered = meet(handles, tensor, noted)
                if entered is not None:
                    after = entered if after is None else _both(after, entered)
                if memory.is_reread(key):
                    recent.append(noted)
                return after
            if not in_graph and not memory.is_reread(key):
                return after
        recent.append(record(written, tensor, key, place_of(frame_of(1)), thread.step, thread))
        if len(recent) > memory.limit:
            memory.prune(lambda key: bool(live.at(key)) or memory.is_reread(key))
        return after

    return before


def _both(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], object]:
    def both() -> None:
        first()
        second()

    return both
