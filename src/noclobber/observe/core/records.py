"""One write as it was seen, and one backward call under way: small records, made on every write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

import torch

from noclobber.model.events import Step
from noclobber.model.source import Site
from noclobber.observe.core.sites import Place, place_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.torch_api import private

_next: Callable[[], int] = count(1).__next__
latest = [0]
"""The newest moment, as its only item. A save takes this one, which costs less: what is written after it has a higher
number."""


def moment() -> int:
    """A number that is higher than all before it, in whatever thread: those of nodes are counted by each thread."""
    latest[0] = number = _next()
    return number


Geometry = tuple[int | None, torch.Size, tuple[int, ...] | None, torch.dtype]
"""Where a tensor's bytes are, in elements: offset, shape, strides; then its dtype. None where there are no strides."""
Strided = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


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
    moment: int
    """When it was made."""
    untracked: bool = False
    """Whether autograd is kept from seeing it, though the tensor is in the graph."""


@dataclass(slots=True, eq=False)
class Backward:
    """A backward call under way; compared by identity. `call` is "backward" or "grad"; "access" of a save that is read
    outside of one."""

    place: Place | None
    outputs: Any
    call: str
    gradients: Any = ()
    """What the program passes in."""
    inputs: Any = ()
    """What gradients are asked for; empty for all leaves."""
    create_graph: bool = False
    over: bool = False
    """Whether it has ended."""
    quiet: bool = False
    """Whether the write log rests meanwhile."""
    deliveries: Any = None
    """What is known of the gradients that are overwritten in it (gradient_consumers.py)."""
    explained: list[Site | None] = field(default_factory=list)
    """Where writes are that were told of in it."""
    later: list[Any] = field(default_factory=list)
    """Reads whose bytes are on a device, to be compared at its end (describe/clobbers.Later)."""
    outer: Backward | None = None
    """The call in whose midst this one is made."""
    node: int = 0
    """The sequence number of the next autograd node of the thread that makes it, when it begins."""
    frame: FrameType | None = None
    """Where it is made, while it is under way: threads that work for it have no frames of the program's own."""


def here() -> Backward | None:
    """The backward call that this thread runs, or works for; None outside of one."""
    call: Backward | None = private.backward_call()
    return None if call is None or call.over else call


def reading() -> Backward:
    """The backward call under way; of a save that is read outside of one, where it is read."""
    return here() or Backward(place_of(sys._getframe(1)), (), "access")


class Counting(Protocol):
    """What a record notes of its thread."""

    entered: bool
    backwards: list[Backward]


_new = tuple.__new__


def geometry(tensor: torch.Tensor) -> Geometry:
    """The geometry of a tensor."""
    offset: Any
    try:
        offset = tensor.storage_offset()
        return (offset, tensor.shape, tensor.stride(), tensor.dtype)
    except Exception:  # sparse and nested tensors, lazy parameters, subclasses that compute their sizes
        return _without_strides(tensor)


def _without_strides(tensor: torch.Tensor) -> Geometry:
    """The geometry of a tensor that does not tell its strides: of a nested one, where it has no gaps, its elements'."""
    with private.plain():
        if tensor.is_nested and tensor.layout is torch.strided and tensor.is_contiguous():
            offset: Any = tensor.storage_offset()
            return (offset, torch.Size((tensor.numel(),)), (1,), tensor.dtype)
        return (None, torch.Size(shape_of(tensor)), None, tensor.dtype)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape; empty where a tensor has none in numbers: nested ones, and those that are traced with symbols.

    (torch 2.13; tests/observe/core/test_nested.py, test_unreadable.py)
    """
    try:
        with private.plain():
            sizes = tuple(_shape.__get__(tensor))
    except Exception:  # a subclass computes its sizes itself
        return ()
    return sizes if all(type(size) is int for size in sizes) else ()


_shape: Any = torch.Tensor.shape


def strided(geometry: Geometry | None) -> Strided | None:
    """The same in numbers; None without strides, and while sizes are symbols, which must not be asked for a number."""
    if geometry is None:
        return None
    offset, shape, strides, dtype = geometry
    if offset is None or strides is None or not all(type(one) is int for one in (offset, *shape, *strides)):
        return None
    return (offset, shape, strides, dtype)


def tensor_on(storage: Any, geometry: Geometry) -> torch.Tensor | None:
    """The tensor of a geometry on what `private.storage_ref` gave for its storage; None once that is gone."""
    memory: Any = private.storage_at(storage.cdata)
    if memory is None:
        return None
    offset, shape, strides, dtype = geometry
    shown: Any = torch.empty(0, dtype=dtype, device=memory.device)
    shown.set_(memory, offset, shape, strides)
    return cast(torch.Tensor, shown)


def _elsewhere() -> tuple[int, int]:
    """What a record notes of backward calls and nodes in a thread that was not entered: it works for a call of another
    thread, whose graphs are what is written, by the numbers that its nodes had when it called."""
    call: Backward | None = private.backward_call()
    if call is None or call.over:
        return 0, private.next_node()
    while call.outer is not None:
        call = call.outer
    return 1, call.node


def record(
    written: Written,
    tensor: torch.Tensor,
    key: int,
    place: Place | None,
    step: Step | None,
    thread: Counting,
    untracked: bool = False,
) -> Record:
    """Note a write that is about to happen in a thread."""
    if thread.entered:
        under_way, number = len(thread.backwards), private.next_node()
    else:
        under_way, number = _elsewhere()
    latest[0] = now = _next()
    fields = (
        written,
        place,
        key,
        private.version_of(tensor),
        geometry(tensor),
        step,
        under_way,
        number,
        now,
        untracked,
    )
    return _new(Record, fields)
