"""Finds the write that made PyTorch refuse a view: the last one to the memory of that view."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.records import Record
from noclobber.observe.describe.reachable import reachable
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state


def is_of_base(message: str) -> bool:
    """Return True for the error about a view whose base, or another view of its base, was written."""
    return "its base or another view of its base has been modified" in message


def write_below(message: str, frames: Iterable[FrameType], memory: Memory) -> Record | None:
    """Return the write that an error about a view is about; None if it is not known.

    PyTorch does not say which view it refuses. So all views are looked at that it refuses in the same words: those that
    the innermost of the `frames` leads to, else those anywhere.
    """
    with modes.plain():
        near = ([one.value for one in reachable([frame]) if _refuses(one.value, message)] for frame in frames)
        views = next(filter(None, near), None) or [one for one in gc.get_objects() if _refuses(one, message)]
        writes = [_last_write(view, memory) for view in views]
    places = {write.place if write is not None else None for write in writes}
    return writes[-1] if len(places) == 1 else None


def _refuses(thing: Any, message: str) -> bool:
    """Return True for a view of which PyTorch says this.

    Asking a view for its node makes a new node where the base was written, except of a view that PyTorch refuses then
    (torch 2.13; tests/observe/describe/test_stale_views.py). So no other views are asked.
    """
    if not issubclass(type(thing), torch.Tensor):
        return False
    try:
        if tensor_state.creation_of(thing) in ("", "DEFAULT"):
            return False
        thing.grad_fn  # noqa: B018 - reading it runs PyTorch's check
    except Exception as error:
        return str(error) == message
    return False


def _last_write(view: torch.Tensor, memory: Memory) -> Record | None:
    """Return the last write to the memory of a view; None unless it is the one that gave the view its version."""
    key, version = storages.storage_key(view), tensor_state.version_of(view)
    for record in reversed(memory.recent):
        if record.key == key and not record.written.uncounted and record.version is not None:
            return record if record.version + 1 == version else None
    return None
