"""`tensor.data = other`: no operator runs and no version moves, so the property itself is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import torch

from noclobber.observe.core import save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.fingerprints import NEVER, fingerprint, same, shown
from noclobber.observe.core.records import geometry, record
from noclobber.observe.core.sites import caller
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.detectors import untracked_writes
from noclobber.observe.detectors.write_policy import note_base
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder

_ASSIGNED = Written("data=", (), True)


def arm(recorder: Recorder, way: Way) -> None:
    """See every assignment, and where `.data` is read, until the recorder disarms."""
    native = private.lookup("_C.TensorBase.data")
    take, data_taken, live = native.__get__, way.entry(recorder.untold.data_taken), recorder.live

    def get_data(tensor: torch.Tensor) -> torch.Tensor:
        data_taken(tensor)
        taken: torch.Tensor = take(tensor)
        return taken

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        handles = way.guarded(lambda: _about_to_assign(recorder, tensor, value))
        native.__set__(tensor, value)
        if handles:
            way.guarded(lambda: _assigned(recorder, handles, tensor))
        if not way.on and recorder.watching:
            # What backward reads is to be what PyTorch would read, all the same.
            for table in (live.unsorted, *list(live.by_storage.values())):
                for reference in table:
                    handle = reference()
                    if handle is not None and handle() is tensor and tensor.grad_fn is None:
                        handle.alias, handle.digest, handle.shown = tensor.detach(), None, None

    way.patches.put(torch.Tensor, "data", property(get_data, set_data, native.__delete__, native.__doc__))


def _about_to_assign(recorder: Recorder, tensor: torch.Tensor, value: torch.Tensor) -> list[save_hooks.Handle]:
    with private.plain():
        return _to_be_moved(recorder, tensor, value)


def _to_be_moved(recorder: Recorder, tensor: torch.Tensor, value: torch.Tensor) -> list[save_hooks.Handle]:
    """The saves that are about to be backed by the other's bytes, which nothing counts.

    PyTorch keeps the TensorImpl of an input, so backward reads the new bytes; an output's save keeps the old ones.
    """
    key = private.storage_key(tensor) if recorder.thread.watched else None
    there = recorder.live.at(key) if key else []
    note_base(there, tensor)
    handles = [handle for handle in there if handle.tensor() is tensor]
    if handles and not tensor._is_view() and tensor.grad_fn is not None:
        producer = tensor.grad_fn
        handles = [handle for handle in handles if not save_hooks.is_result(handle, producer)]
    reread = key is not None and recorder.memory.is_reread(key)
    tensors = key is not None and isinstance(value, torch.Tensor)
    cuts = tensors and (value.requires_grad or untracked_writes.is_computed(tensor))
    if not handles and not reread and not cuts:
        return []
    noted = record(_ASSIGNED, tensor, key or 0, caller(1), recorder.thread.step, recorder.thread)
    if reread:
        recorder.memory.recent.append(noted)
    if cuts:
        recorder.untold.assigned(noted, tensor, value)
    recorder.meet(handles, tensor, noted)
    return [] if recorder.keeping else handles


def _assigned(recorder: Recorder, handles: list[save_hooks.Handle], tensor: torch.Tensor) -> None:
    with private.plain():
        for handle in handles:
            moved(handle, alias_of(tensor, handle.alias))
            recorder.live.unsorted.append(ref(handle))  # it lies on another storage now


def alias_of(tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """An alias of a tensor that was given other memory; `old` is the one that it had before.

    Where that memory was made in inference mode, so would be a detach: it would not share the tensor's version counter,
    and the engine refuses to take it from a hook (torch 2.13; tests/observe/test_inference.py).
    """
    if not tensor.is_inference():
        return save_hooks.alias_of(tensor)
    with private.aside():
        alias, shown = old.detach(), torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        shown.set_(private.storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        private.give(alias, shown)
    return alias


def moved(handle: save_hooks.Handle, alias: torch.Tensor) -> None:
    """The save lies on other memory now. Fingerprints are of bytes in their order: it is taken anew for another layout,
    of the old bytes where these are still what was saved."""
    old, before = handle.alias, handle.digest
    handle.alias = alias
    if before is None:
        return
    handle.shown = shown(alias)
    (_, *was), (_, *is_now) = geometry(old), geometry(alias)
    if (was[0], was[2]) != (is_now[0], is_now[2]):
        handle.digest = NEVER
    elif was != is_now:
        if not same(fingerprint(old), before):
            handle.digest = NEVER
            return
        with private.aside():
            handle.digest = fingerprint(torch.empty_like(alias).copy_(old))
