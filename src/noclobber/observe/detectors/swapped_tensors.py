"""`torch.utils.swap_tensors`: works as it does without noclobber, and what it takes from under a reader is noted."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any
from weakref import ref

import torch

from noclobber.observe.core import save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import record
from noclobber.observe.core.save_hooks import Aside, Handle, Needed, is_result
from noclobber.observe.core.sites import caller
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.torch_api import private

_SWAPPED = Written("swap_tensors", (), True)


def arm(context: Context, way: Way) -> None:
    """Let tensors be swapped as without noclobber, and see that they are, until the recorder disarms.

    PyTorch refuses tensors that anything refers to weakly, or that autograd holds. Our handles refer weakly to what was
    saved, and hold less than a save of PyTorch's own does (torch 2.13; tests/observe/detectors/test_swapped.py).
    """
    count, swap = private.use_count, private.lookup("_C._swap_tensor_impl")

    def getweakrefs(thing: Any) -> list[Any]:
        return [one for one in weakref.getweakrefs(thing) if not isinstance(one, private.Weak)]

    def _use_count(tensor: torch.Tensor) -> int:
        more = way.guarded(lambda: _held_without_us(tensor) - _held_by_us(context, tensor))
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


def _held_without_us(tensor: torch.Tensor) -> int:
    """How many saves of PyTorch's own would hold a tensor: those of an input do, those of a result have a tensor of
    their own. A view is not asked for its node, which can change a program: it counts as a result. That a view was
    saved which is gone, and would hold this tensor, can't be told."""
    found = (one for one in weakref.getweakrefs(tensor) if isinstance(one, Handle))
    saves = [one for one in found if not isinstance(one, (Needed, Aside))]
    if not saves or tensor._is_view():
        return 0
    producer = tensor.grad_fn
    return sum(producer is None or not is_result(one, producer) for one in saves)


def _held_by_us(context: Context, tensor: torch.Tensor) -> int:
    """How many saves of PyTorch's own noclobber has made of a tensor, where bytes are preserved."""
    key = private.storage_key(tensor)
    held = context.live.at(key) if key is not None and context.thread.watched else ()
    connected = (one for one in held if one.follows and one.connected is not None)
    return sum(one.tensor() is tensor for one in connected)


Moved = tuple[torch.Tensor, Handle]


def _about_to_move(context: Context, tensor: torch.Tensor) -> list[Moved]:
    """A tensor is about to get other memory: who will read it there, each of which takes note. What is saved stays."""
    key = private.storage_key(tensor) if context.thread.watched else None
    if key is None:
        return []
    live: list[Handle] = [one for one in context.live.at(key) if one.follows and one.tensor() is tensor]
    noted = record(_SWAPPED, tensor, key, caller(2), context.thread.step, context.thread)
    if context.memory.is_reread(key):
        context.memory.recent.append(noted)
    if live:
        context.meet(live, tensor, noted)
    return [(tensor, one) for one in live]


def _have_moved(context: Context, moved: list[Moved]) -> None:
    for tensor, handle in moved if not context.keeping else ():
        save_hooks.moved(handle, save_hooks.alias_elsewhere(tensor, handle.alias))
        context.live.unsorted.append(ref(handle))
