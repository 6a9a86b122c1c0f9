"""Lets `torch.utils.swap_tensors` swap the tensors that it swaps without noclobber."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Aside, Handle, Needed, is_result
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.tensors import storages, tensor_state


def arm(context: Context, way: Way) -> None:
    """Hide noclobber's references from the checks that `swap_tensors` makes, until the recorder disarms.

    PyTorch refuses to swap a tensor that has weak references, or that autograd holds. noclobber's handles refer weakly
    to the saved tensor, and hold it less often than PyTorch's own saves do (torch 2.13;
    tests/observe/detectors/test_swapped.py).
    """
    count = tensor_state.use_count

    def getweakrefs(thing: object) -> list[object]:
        return [reference for reference in weakref.getweakrefs(thing) if not isinstance(reference, tensor_state.Weak)]

    def _use_count(tensor: torch.Tensor) -> int:
        more = way.guarded(lambda: _held_without_us(context, tensor) - _held_by_us(context, tensor))
        return count(tensor) + (more or 0)

    private.lookup("utils.weakref.getweakrefs")
    way.patches.put(torch.utils, "weakref", SimpleNamespace(getweakrefs=getweakrefs))
    way.patches.put(torch.Tensor, "_use_count", _use_count)


def _held_without_us(context: Context, tensor: torch.Tensor) -> int:
    """Return how many of PyTorch's own saves would hold a tensor if noclobber were not there.

    A save of an input holds the tensor; a save of a result has a tensor of its own. A view counts as a result, because
    reading the node of a view can change a program. Saves of dead views of this tensor are not counted: PyTorch's saves
    would hold it, but noclobber cannot find them.
    """
    if (key := storages.storage_key(tensor)) is not None:
        context.live.at(key)  # every save has a handle then, also one that the native part has taken
    handles = (reference for reference in weakref.getweakrefs(tensor) if isinstance(reference, Handle))
    saves = [handle for handle in handles if not isinstance(handle, (Needed, Aside))]
    if not saves or tensor._is_view():
        return 0
    producer = tensor.grad_fn
    return sum(producer is None or not is_result(save, producer) for save in saves)


def _held_by_us(context: Context, tensor: torch.Tensor) -> int:
    """Return how many saves noclobber itself had PyTorch make of a tensor, where bytes are preserved."""
    key = storages.storage_key(tensor)
    held = context.live.at(key) if key is not None and context.thread.watched else ()
    connected = (handle for handle in held if handle.follows and handle.connected is not None)
    return sum(handle.tensor() is tensor for handle in connected)
