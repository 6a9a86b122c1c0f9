"""Sees a tensor get other memory, by `tensor.data = other` or `torch.utils.swap_tensors`, and an alias outside of the
graph get a tensor's own, by `.data` or `.detach()`.

No version moves. The saves that read the tensor itself follow it to its new memory, as all do that of their storage.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.utils.checkpoint

from noclobber.model.tracebacks import without_own_frames
from noclobber.observe import policy
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, compare, is_result, note_base
from noclobber.observe.core.seen.records import record
from noclobber.observe.core.seen.sites import caller
from noclobber.observe.core.seen.written import Written
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import compile_guard, modes
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.torch_api.tensors.tensor_state import is_leaf
from noclobber.observe.witness.layout import geometry

_ASSIGNED = Written("data=", (), True)
_SWAPPED = Written("swap_tensors", (), True)
Moved = tuple[torch.Tensor, Handle]


def arm_assignments(context: Context, way: Way) -> None:
    """Watch each assignment to `.data` and each read of it, until the recorder disarms."""
    native = private.lookup("_C.TensorBase.data")
    take, live, looked_at = native.__get__, context.live, way.entry(partial(_is_about_to_take, context))

    def get_data(tensor: torch.Tensor) -> torch.Tensor:
        looked_at(tensor)
        taken: torch.Tensor = take(tensor)
        return taken

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        those = way.guarded(_about_to_assign, context, tensor, value)
        try:
            native.__set__(tensor, value)
        except (RuntimeError, TypeError) as error:
            without_own_frames(error)
            raise
        if those:
            way.guarded(policy.have_moved, context, those)
        if not way.on and context.watching:
            # This way of seeing has failed. Backward must still read what PyTorch alone would read.
            for handle in live.all():
                if handle() is tensor and tensor.grad_fn is None:
                    handle.alias, handle.digest, handle.shown = tensor_state.detach(tensor), None, None

    way.patches.put(torch.Tensor, "data", property(get_data, set_data, native.__delete__, native.__doc__))


class _Detach:
    """`torch.Tensor.detach`, which reports what it is called on. It is found where a table has the native method, as
    in the classes of torchvision that keep their type (torchvision 0.27, tv_tensors/_torch_function_helpers.py)."""

    def __init__(self, native: Any, detach: Callable[..., torch.Tensor]) -> None:
        functools.update_wrapper(self, native)
        self._native, self._detach = native, detach

    def __get__(self, tensor: torch.Tensor | None, _: type | None = None) -> object:
        return self if tensor is None else MethodType(self._detach, tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._detach(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self._native or isinstance(other, _Detach)

    def __hash__(self) -> int:
        return hash(self._native)

    def __repr__(self) -> str:
        return repr(self._native)

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (torch.Tensor, "detach")


def arm_detached(context: Context, way: Way) -> None:
    """Watch each `.detach()` of a plain tensor in the graph, until the recorder disarms.

    Not by the hook with which the second run of a checkpointed region keeps what it saves: it writes to none (torch
    2.13, torch/utils/checkpoint.py; lora-checkpoint in benchmarks/).
    """
    looked_at, modes_of_program = way.entry(partial(_is_about_to_detach, context)), modes.function_modes
    of_checkpoint = torch.utils.checkpoint.__file__

    def detach(*args: Any, **kwargs: Any) -> torch.Tensor:
        above = sys._getframe().f_back
        if above is not None and above.f_code.co_name == "pack_hook" and above.f_code.co_filename == of_checkpoint:
            return tensor_state.detach(*args, **kwargs)
        # A mode of the program would see the question whether a tensor requires a gradient.
        if args and type(args[0]) in storages.PLAIN and (modes_of_program() or args[0].requires_grad):
            looked_at(args[0])
        return tensor_state.detach(*args, **kwargs)

    compile_guard.never_compile(passed_over(detach), nor_its_calls=False)
    way.patches.put(torch.Tensor, "detach", _Detach(tensor_state.detach, detach))


def arm_resizes(context: Context, way: Way) -> None:
    """Watch the program free the memory of a storage, and give it memory again, until the recorder disarms. What is
    saved on it stays on it."""
    native = torch.UntypedStorage.resize_

    @functools.wraps(native)
    def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> object:
        key = way.guarded(storages.key_of, storage)
        result = native(storage, *args, **kwargs)
        if key is not None:
            way.guarded(_resized, context, storage, key)
        return result

    way.patches.put(torch.UntypedStorage, "resize_", resize_)


def arm_swaps(context: Context, way: Way) -> None:
    """Watch each swap of two tensors, until the recorder disarms."""
    swap = private.lookup("_C._swap_tensor_impl")

    def _swap_tensor_impl(one: torch.Tensor, other: torch.Tensor) -> None:
        those = way.guarded(lambda: [*_about_to_swap(context, one), *_about_to_swap(context, other)])
        swap(one, other)
        if those:
            way.guarded(policy.have_moved, context, those)

    way.patches.put(torch._C, "_swap_tensor_impl", _swap_tensor_impl)


def _resized(context: Context, storage: torch.UntypedStorage, key: int) -> None:
    context.live.file_anew(key)
    if not storage.nbytes():
        context.untracked.emptied(storage)
        for handle in context.live.at(storages.key_of(storage)):
            handle.suspected().freed = True


def _is_about_to_take(context: Context, tensor: torch.Tensor) -> None:
    """Note the memory of a tensor in the graph whose `.data` is read.

    What is read has a version counter of its own, and a write may bring it into the graph. What is made of a leaf's is
    a leaf, or outside of the graph, where each write is looked at.
    """
    if not tensor.requires_grad or (key := storages.storage_key(tensor)) is None:
        return
    context.untracked.taken_out(tensor, key, "data")
    if context.contents is not None and not is_leaf(tensor):
        compare(context.contents, context.live.at(key))
        if key not in context.contents.moved:
            context.contents.moves(key, storages.storage(tensor))


def _is_about_to_detach(context: Context, tensor: torch.Tensor) -> None:
    """Note a tensor in the graph of which an alias is made that no longer is: it shares the version counter."""
    if tensor.requires_grad and (key := storages.storage_key(tensor)) is not None:
        context.untracked.taken_out(tensor, key, "detached")


def _about_to_assign(context: Context, tensor: torch.Tensor, value: torch.Tensor) -> list[Moved]:
    """Return the saves whose bytes `tensor.data = value` is about to replace; no version counter moves.

    PyTorch keeps the TensorImpl of an input, so backward reads the new bytes. The save of an output keeps the old ones.
    """
    key = storages.storage_key(tensor) if context.thread.watched else None
    elsewhere = storages.storage_key(value) if isinstance(value, torch.Tensor) else None
    if key is not None and elsewhere == key and geometry(value) == geometry(tensor):
        return []  # `w.data = w.data.float()`: the same bytes
    if key is not None:
        for look in context.unseen:
            look(_ASSIGNED, tensor, key, sys._getframe(1))
    there = context.live.at(key) if key else []
    note_base(there, tensor)
    compare(context.contents, there)  # they share the version of writes to other memory from now on
    if context.contents is not None and key is not None and elsewhere is not None:
        context.contents.moves(key, storages.storage(tensor))
        context.contents.moves(elsewhere, storages.storage(value))
    handles = [handle for handle in there if handle.tensor() is tensor]
    if handles and not tensor._is_view() and tensor.grad_fn is not None:
        producer = tensor.grad_fn
        handles = [handle for handle in handles if not is_result(handle, producer)]
    reread = key is not None and context.memory.is_reread(key)
    tensors = key is not None and isinstance(value, torch.Tensor)
    cuts = tensors and (value.requires_grad or tensor_state.is_computed(tensor))
    if not handles and not reread and not cuts:
        return []
    noted = record(_ASSIGNED, tensor, key or 0, caller(), context.thread)
    if reread:
        context.memory.log(noted)
    if cuts:
        context.untracked.assigned(noted, tensor, value)
    policy.meet(context, handles, tensor, noted)
    return [(tensor, handle) for handle in handles]


def _about_to_swap(context: Context, tensor: torch.Tensor) -> list[Moved]:
    """Return the handles that will read a tensor in its new memory, and note the write with each.

    The tensor is about to get other memory by a swap. Saves of PyTorch keep the old memory, so they are left out.
    """
    key = storages.storage_key(tensor) if context.thread.watched else None
    if key is None:
        return []
    live = [handle for handle in context.live.at(key) if handle.follows and handle.tensor() is tensor]
    noted = record(_SWAPPED, tensor, key, caller(), context.thread)
    if context.memory.is_reread(key):
        context.memory.log(noted)
    if live:
        policy.meet(context, live, tensor, noted)
    return [(tensor, handle) for handle in live]
