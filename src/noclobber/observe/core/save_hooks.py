"""The hooks on saves: the pack hook makes a handle of each save, the unpack hook checks it and returns its tensor."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet, ref

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from noclobber.model.reports.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.collector import MANY, leave_out
from noclobber.observe.core.seen.handles import Handle, OfView, alias_of, of_view_outside, versioned
from noclobber.observe.core.seen.records import latest, taken
from noclobber.observe.core.seen.sites import place_of
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, hook_stack, native_saves
from noclobber.observe.torch_api.dispatch import compile_guard, modes
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import OUTSIDE, Digest, digest_of, fingerprint, shown

Pack = Callable[[torch.Tensor], Handle]
Unpack = Callable[[Handle], torch.Tensor]
Hooks = tuple[Pack, Unpack]

_packs: WeakSet[Pack] = WeakSet()


def are_ours(pair: hook_stack.Pair | None) -> bool:
    """Return True if a pair of hooks is noclobber's.

    Inside a node the engine has a stack of its own and drops it afterwards with all changes. So a pair on a stack may
    be an older one of ours.
    """
    return pair is not None and isinstance(pair[0], FunctionType) and pair[0] in _packs


def claim(pack: Pack) -> Pack:
    """Mark pairs with this pack hook as noclobber's, and keep torch.compile from it."""
    compile_guard.never_compile(pack)
    _packs.add(pack)
    return pack


def hooks(context: Context, late: Callable[[Context, torch.Tensor], Handle]) -> Hooks:
    """Return the pack and unpack hooks of the calling thread. They compare bytes too where contents are watched.

    `late` returns the handle of a save that these hooks are called for when what is seen has changed since. Where
    noclobber itself fails, a save only gets PyTorch's check of the version.
    """
    unpack = _unpacking(context)
    compile_guard.never_compile(passed_over(unpack))
    return claim(_packing(context, late)), unpack


def _packing(context: Context, late: Callable[[Context, torch.Tensor], Handle]) -> Pack:
    """Return the pack hook. It makes a handle, files it, and calls the takers of saves.

    Inside pack, the next sequence number minus one is that of the node being built (torch_api/self_tests.py tries it).
    """
    live, takers = context.live, context.takers
    unsorted, add_place = live.unsorted, context.thread.saves.append
    next_node, frame_of, detach = engine_state.next_node, sys._getframe, tensor_state.detach
    at_save = context.contents.at_pack if context.contents is not None else None
    arming = context.armings
    functions_enabled, function_modes = modes.functions_enabled, modes.function_modes
    views_are_visited = gc.is_tracked((ctypes.c_char * 0)())  # else `leave_out` would write beside them

    def pack(tensor: torch.Tensor) -> Handle:
        moment = latest[0]  # before the question: where seeing begins anew meanwhile, the save is from before
        try:
            if functions_enabled() and (type(tensor) not in storages.PLAIN or function_modes()):
                with modes.plain():
                    return pack(tensor)
            if context.armings != arming:
                return late(context, tensor)
            if not tensor._is_view():
                handle = Handle(tensor)
            else:
                handle = OfView(tensor) if tensor.requires_grad else of_view_outside(tensor)
            try:
                alias = detach(tensor)  # what `alias_of` does, without a call that may fail
            except (RuntimeError, NotImplementedError, TypeError):
                alias = alias_of(tensor)
            handle.alias = alias
            handle.version = alias._version
            handle.suspect = memory = None
            if at_save is None:
                handle.digest = None
            else:
                handle.shown = memory = shown(alias)
                if memory is None:
                    handle.digest = at_save(alias)
                    if not tensor.requires_grad:
                        handle.shown = OUTSIDE
                else:
                    handle.digest = digest_of(memory)
            handle.node = node = next_node() - 1
            handle.moment = moment
            handle.place = place = place_of(frame_of())
            taken[0] += 1
            filed = ref(handle)
            unsorted.append(filed)
            if len(unsorted) > live.limit:
                live.sweep()
            if live.alive > MANY:
                leave_out(handle)
                leave_out(filed)
                if memory is not None and views_are_visited:
                    leave_out(memory)
                    leave_out(memory[0])
            add_place((node, place))
            for among, saved in takers:
                if among:
                    saved(handle, tensor)
            return handle
        except Exception as failure:
            if not is_lazy(tensor):  # a parameter without memory, which refuses every question
                context.core.fail(failure)
            return versioned(tensor)

    return pack


def _unpacking(context: Context) -> Unpack:
    """Return the unpack hook. It compares versions, as PyTorch does not once hooks are set (saved_variable.cpp); and
    fingerprints where contents are watched."""
    address, at_read = storages.address, None if context.contents is None else context.contents.at_read
    preserved = context.keeping

    def unpack(handle: Handle) -> torch.Tensor:
        alias = handle.alias
        digest: Digest = None
        try:
            is_same = alias._version == handle.version and handle.suspect is None
            if at_read is not None:
                memory = handle.shown
                # The storage may have been freed meanwhile. A sparse save has no address.
                if memory is not None and memory is not OUTSIDE and address(alias) == memory[1]:
                    digest = digest_of(memory)
                elif handle.digest is not None and handle.kept is None:
                    digest = (fingerprint if memory is OUTSIDE else at_read)(alias)
                is_same = is_same and digest == handle.digest
            if is_same:
                return alias
            if (found := context.parts.read(context, handle, digest, preserved)) is not None:
                return found
        except ClobberError:
            raise
        except Exception as failure:
            context.core.fail(failure)
        return checked(handle)

    return unpack


_STALE = "one of the variables needed for gradient computation has been modified by an inplace operation"


@passed_over
def checked(handle: Handle) -> torch.Tensor:
    """Return what PyTorch would unpack without hooks. Raises ClobberError with PyTorch's words if the version moved."""
    if (suspect := handle.suspect) is not None:
        if suspect.theirs is not None:
            return suspect.theirs.unpack()
        if suspect.kept is not None:
            return suspect.kept
    if (version := handle.version) != handle.alias._version:
        current = handle.alias._version
        try:
            said = native_saves.said_of_a_stale(handle.alias, current, version)
        except NotImplementedError:  # PyTorch raises this too
            raise
        except Exception:  # PyTorch's own words are not to be had
            said = f"{_STALE}: [{handle.alias.type()} {list(handle.alias.shape)}] is at version {current}"
            said += f"; expected version {version} instead."
        raise ClobberError(said)
    return handle.alias


Saved = tuple[torch.Tensor | None, ...]
"""What `ctx.saved_tensors` returns."""


def arm_originals(_: Context, way: Way) -> None:
    """Let `ctx.saved_tensors` of a custom Function return what it returns without hooks."""
    native = private.lookup("_C._FunctionBase.saved_tensors")

    def saved_tensors(function: BackwardCFunction) -> Saved:
        unpacked: Saved = native.__get__(function)
        restored = way.guarded(originals, function, unpacked)
        return unpacked if restored is None else restored

    way.patches.put(BackwardCFunction, "saved_tensors", property(saved_tensors, doc=native.__doc__))


def originals(function: BackwardCFunction, unpacked: Saved) -> Saved:
    """Return what `ctx.saved_tensors` returns without hooks: the saved inputs, not new tensors on their bytes.

    Code keeps gradients and marks as attributes of parameters and looks for them in backward. In `jvp` it returns the
    arguments of `save_for_forward`, which no hook packs (torch 2.13; tests/observe/core/test_saved_tensors.py).
    """
    for_forward: Saved | None = function.saved_for_forward
    if for_forward is unpacked:
        return unpacked
    return tuple(
        _original(function, raw, tensor) for raw, tensor in zip(function._raw_saved_tensors, unpacked, strict=True)
    )


def _original(function: object, raw: Any, unpacked: Any) -> Any:
    handle = raw.data if unpacked is not None else None
    if not isinstance(handle, Handle) or unpacked.grad_fn is function:
        return unpacked
    tensor = handle.tensor()
    if tensor is None or storages.storage_key(tensor) != storages.storage_key(handle.alias):
        return unpacked  # its bytes were kept, or it was given other memory
    return tensor
