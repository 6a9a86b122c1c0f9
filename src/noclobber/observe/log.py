"""What runs on every write, as closures over as little as possible: a few attribute reads and an append."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from noclobber.model.clobber import LiveSaves
from noclobber.model.events import Step
from noclobber.observe import internals
from noclobber.observe.saves import Handle
from noclobber.observe.sites import Place, place_of
from noclobber.observe.writes import Written

Geometry = tuple[int | None, torch.Size, tuple[int, ...] | None, torch.dtype]
"""Where a tensor's bytes are, in elements: offset, shape, strides; then its dtype. None where there are no strides."""


class Record(NamedTuple):
    """One write as it was seen, turned into a model Write only when a finding is made."""

    written: Written
    place: Place | None
    key: int
    version: int | None
    geometry: Geometry | None
    step: Step | None
    backwards: int
    """Backward calls under way."""
    node: int
    """The sequence number of the next autograd node."""


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """A backward call under way; compared by identity."""

    place: Place | None
    outputs: Any
    call: str


_new = tuple.__new__


def geometry(tensor: torch.Tensor) -> Geometry:
    """The geometry of a tensor."""
    try:
        return (int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.dtype)
    except (RuntimeError, NotImplementedError):
        return (None, tensor.shape, None, tensor.dtype)


def record(
    written: Written, tensor: torch.Tensor, key: int, place: Place | None, step: Step | None, backwards: int
) -> Record:
    """Note a write that is about to happen."""
    fields = (
        written,
        place,
        key,
        internals.version_of(tensor),
        geometry(tensor),
        step,
        backwards,
        internals.next_node(),
    )
    return _new(Record, fields)


def every_write(
    recent: deque[Record], backwards: list[Backward], steps: Any, without_storage: Callable[[], None]
) -> Callable[[Written, torch.Tensor], None]:
    """For `install`: remember every write."""
    append, frame_of, storage_key = recent.append, sys._getframe, internals.storage_key

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None:
            without_storage()
        else:
            append(record(written, tensor, key, place_of(frame_of(2)), steps.step, len(backwards)))

    return before


def writes_to_saves(
    live: LiveSaves[Handle],
    recent: deque[Record],
    backwards: list[Backward],
    steps: Any,
    met: Callable[[list[Handle], torch.Tensor, Record], None],
    without_storage: Callable[[], None],
) -> Callable[[Written, torch.Tensor], None]:
    """For `watch`: hand a write to `met` where its storage has live saves; of the rest, remember those in the graph."""
    append, frame_of, unsorted = recent.append, sys._getframe, live.unsorted
    storage_key, next_node = internals.storage_key, internals.next_node

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if unsorted:
            live.sort()
        if key in live.by_storage:
            handles = live.at(key)
            if handles:
                met(handles, tensor, record(written, tensor, key, place_of(frame_of(2)), steps.step, len(backwards)))
                return
        if key is None:
            without_storage()
        elif tensor.requires_grad:
            fields = (
                written,
                place_of(frame_of(2)),
                key,
                tensor._version,
                None,
                steps.step,
                len(backwards),
                next_node(),
            )
            append(_new(Record, fields))

    return before
