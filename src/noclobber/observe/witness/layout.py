"""Where a tensor's bytes lie in its storage, and whether two tensors share any."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from noclobber.model.seen.live_saves import EVERYWHERE, Span, meet
from noclobber.model.seen.overlap import Region, overlap
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages

Geometry = tuple[int | None, tuple[int, ...], tuple[int, ...] | None, torch.dtype]
"""Where a tensor's bytes are: offset, shape and strides in elements, and the dtype. None: the tensor has no strides.

The shape is a plain tuple: the garbage collector soon passes over those that hold numbers only, but never over a
torch.Size (CPython 3.11)."""
Strided = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""A geometry that has strides."""
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""A geometry without its offset."""


def geometry(tensor: torch.Tensor) -> Geometry:
    offset: Any
    if tensor.is_sparse:  # it has strides, which are all 0 (torch 2.13; tests/observe/core/test_sparse.py)
        return _without_strides(tensor)
    try:
        offset = tensor.storage_offset()
        return (offset, tuple(tensor.shape), tensor.stride(), tensor.dtype)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return _without_strides(tensor)  # sparse, nested, lazy; a subclass that computes its sizes


def _without_strides(tensor: torch.Tensor) -> Geometry:
    """Return the geometry of a tensor without strides; of a nested tensor without gaps, that of its elements."""
    with modes.plain():
        if tensor.is_nested and tensor.layout is torch.strided and tensor.is_contiguous():
            offset: Any = tensor.storage_offset()
            return (offset, (tensor.numel(),), (1,), tensor.dtype)
        return (None, shape_of(tensor), None, tensor.dtype)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape; empty if it is not made of numbers, as in nested tensors and those traced with symbols.

    (torch 2.13; tests/observe/core/test_nested.py, test_unreadable.py)
    """
    try:
        with modes.plain():
            sizes = tuple(_shape.__get__(tensor))
    except Exception:  # a subclass computes its sizes itself
        return ()
    return sizes if all(type(size) is int for size in sizes) else ()


_shape: Any = torch.Tensor.shape


def strided(geometry: Geometry | None) -> Strided | None:
    """Return the geometry in plain numbers; None without strides or with symbolic sizes, which must stay symbols."""
    if geometry is None:
        return None
    offset, shape, strides, dtype = geometry
    if offset is None or strides is None or {int} != {*map(type, (offset, *shape, *strides))}:
        return None
    return (offset, shape, strides, dtype)


def region(geometry: Geometry | None) -> Region | None:
    """Return the bytes of a geometry; None for a layout without strides or with symbolic sizes."""
    if (known := strided(geometry)) is None:
        return None
    offset, shape, strides, dtype = known
    size = dtype.itemsize
    return Region(offset * size, tuple(shape), tuple(stride * size for stride in strides), size)


def span(geometry: Geometry | None) -> Span:
    """Return the first byte of a geometry and the byte behind the last; EVERYWHERE if they are not known."""
    if geometry is None:
        return EVERYWHERE
    offset, shape, strides, dtype = geometry
    try:
        length = _length(shape, strides)
    except TypeError:  # symbols have no hash
        length = None
    if length is None or type(offset) is not int:
        return EVERYWHERE
    return offset * dtype.itemsize, (offset + length) * dtype.itemsize


@lru_cache(maxsize=4096)
def _length(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int | None:
    """Return how many elements lie from the first to the last of a tensor, these two included; None without strides or
    with symbolic sizes."""
    known = strided((0, shape, strides, torch.uint8))
    return None if known is None else 1 + sum([(size - 1) * stride for size, stride in zip(*known[1:3], strict=True)])


def span_of(tensor: torch.Tensor) -> Span:
    return span(geometry(tensor))


def tensor_on(storage: StorageWeakRef, geometry: Geometry) -> torch.Tensor | None:
    """Return a tensor of this geometry on a storage from `storages.storage_ref`; None once its bytes are gone."""
    memory: torch.UntypedStorage | None = storages.storage_at(storage.cdata)
    where = region(geometry)
    if memory is None or (where is not None and where.end() > memory.nbytes()):  # `set_` would make the storage larger
        return None
    offset, shape, strides, dtype = geometry
    shown: Any = torch.empty(0, dtype=dtype, device=memory.device)
    try:
        shown.set_(memory, offset, shape, strides)
    except RuntimeError:  # the lazy device puts no tensor on another storage (torch 2.13; test_kinds.py)
        return None
    return cast(torch.Tensor, shown)


def once(tensor: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return a view with each element once: of a dimension that is expanded, in the tensor or by these strides, only
    the first."""
    for dimension, stride in enumerate(tensor.stride() if strides is None else strides):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, min(1, tensor.shape[dimension]))
    return tensor


def reach(tensor: torch.Tensor) -> int:
    """Return how many elements lie between the first and the last element of a tensor."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def may_touch(saved: torch.Tensor, written: Geometry | None) -> bool:
    """Return False if a write cannot share a byte with a save. True is not exact: it only compares the two spans."""
    return meet(span_of(saved), span(written))


def touch(one: Geometry | None, other: Geometry | None) -> bool:
    """Return True if two tensors of one storage share a byte. Exact for strided tensors; True if that is not known."""
    first, second = strided(one), strided(other)
    if first is None or second is None:
        return True
    return _touch(second[0] * second[3].itemsize - first[0] * first[3].itemsize, first[1:], second[1:])


def share_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors share a byte, or if that is not known of two on one storage."""
    key = storages.storage_key(one)
    return key is not None and key == storages.storage_key(other) and touch(geometry(one), geometry(other))


@lru_cache(maxsize=4096)
def _touch(apart: int, one: Layout, other: Layout) -> bool:
    """Return True if two layouts share a byte; the second begins `apart` bytes after the first."""
    first, second = (region((0, *layout)) for layout in (one, other))
    return first is None or second is None or overlap(first, replace(second, offset=apart))
