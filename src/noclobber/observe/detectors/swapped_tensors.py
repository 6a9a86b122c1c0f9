"""Lets `torch.utils.swap_tensors` work as without noclobber, and notes when it changes the memory that a save reads."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import torch

from noclobber.observe.core import save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import record
from noclobber.observe.core.save_hooks import Aside, Handle, Needed, is_result
from noclobber.observe.core.sites import caller
from noclobber.observe.core.written import Written
from noclobber.observe.torch_api import private

_SWAPPED = Written("swap_tensors", (), True)


def arm(context: Context, way: Way) -> None:
    """Let the program swap tensors as without noclobber, and record each swap, until the recorder disarms.

    PyTorch refuses to swap a tensor that has weak references, or that autograd holds. noclobber's handles refer weakly
    to the saved tensor, and hold it less often than PyTorch's own saves do (torch 2.13;
    tests/observe/detectors/test_swapped.py).
    """
    count, swap = private.use_count, private.lookup("_C._swap_tensor_impl")

    def getweakrefs(thing: object) -> list[object]:
        return [reference for reference in weakref.getweakrefs(thing) if not isinstance(reference, private.Weak)]

    def _use_count(tensor: torch.Tensor) -> int:
        more = way.guarded(lambda: _held_without_us(context, tensor) - _held_by_us(context, tensor))
        return count(tensor) + (more or 0)

    def _swap_tensor_impl(one: torch.Tensor, other: torch.Tensor) -> None:
        moved = way.guarded(lambda: [*_about_to_move(context, one), *_about_to_move(context, other)])
        swap(one, other)
        if moved:
            way.guarded(lambda: _have_moved(context, moved))

    private.lookup("utils.weakref.getweakrefs")
    way.patches.put(torch.utils, "weakref", SimpleNamespace(getweakrefs=getweakrefs))
    way.patches.put(torch.Tensor, "_use_count", _use_count)
    way.patches.put(torch._C, "_swap_tensor_impl", _swap_tensor_impl)


def _held_without_us(context: Context, tensor: torch.Tensor) -> int:
    """Return how many of PyTorch's own saves would hold a tensor if noclobber were not there.

    A save of an input holds the tensor; a save of a result has a tensor of its own. A view counts as a result, because
    reading the node of a view can change a program. Saves of dead views of this tensor are not counted: PyTorch's saves
    would hold it, but noclobber cannot find them.
    """
    if (key := private.storage_key(tensor)) is not None:
        context.live.at(key)  # every save has a handle then, also one that the native part has taken
    handles = (reference for reference in weakref.getweakrefs(tensor) if isinstance(reference, Handle))
    saves = [handle for handle in handles if not isinstance(handle, (Needed, Aside))]
    if not saves or tensor._is_view():
        return 0
    producer = tensor.grad_fn
    return sum(producer is None or not is_result(save, producer) for save in saves)


def _held_by_us(context: Context, tensor: torch.Tensor) -> int:
    """Return how many saves noclobber itself had PyTorch make of a tensor, where bytes are preserved."""
    key = private.storage_key(tensor)
    held = context.live.at(key) if key is not None and context.thread.watched else ()
    connected = (handle for handle in held if handle.follows and handle.connected is not None)
    return sum(handle.tensor() is tensor for handle in connected)


Moved = tuple[torch.Tensor, Handle]


def _about_to_move(context: Context, tensor: torch.Tensor) -> list[Moved]:
    """Return the handles that will read a tensor in its new memory, and note the write with each.

    The tensor is about to get other memory by a swap. Saves of PyTorch keep the old memory, so they are left out.
    """
    key = private.storage_key(tensor) if context.thread.watched else None
    if key is None:
        return []
    live: list[Handle] = [handle for handle in context.live.at(key) if handle.follows and handle.tensor() is tensor]
    noted = record(_SWAPPED, tensor, key, caller(2), context.thread)
    if context.memory.is_reread(key):
        context.memory.log(noted)
    if live:
        context.meet(live, tensor, noted)
    return [(tensor, handle) for handle in live]


def _have_moved(context: Context, moved: list[Moved]) -> None:
    """Let the handles follow their tensors to the new memory; not where bytes are preserved, which keeps the old."""
    for tensor, handle in moved if not context.keeping else ():
        save_hooks.moved(handle, save_hooks.alias_elsewhere(tensor, handle.alias), context.live)
