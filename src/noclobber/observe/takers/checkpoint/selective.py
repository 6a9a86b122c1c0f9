"""Selective checkpoints: what the policy keeps of forward is a save, compared when the second run takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal
from weakref import ref

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Aside, made
from noclobber.observe.core.seen.records import reading
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.describe import clobbers, refusals, write_history
from noclobber.observe.takers.checkpoint.regions import CheckpointRegion
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import fingerprint_aside
from noclobber.observe.witness.witness import Change, change


class PolicySave(Aside):
    """A tensor that the policy of a selective checkpoint keeps. Its alias is PyTorch's own detached tensor."""

    __slots__ = ()
    unchecked: Literal["", "hooks", "ctx", "policy"] = "policy"


def arm(context: Context, way: Way) -> None:
    """Watch what policies keep until the recorder disarms.

    What is kept already is watched for good: bytes that were preserved are given even after the preserving block.
    """
    wrapper = private.lookup("utils.checkpoint._VersionWrapper")
    native = wrapper.get_val

    def kept(_: None, made: Any, *__: object, **___: object) -> None:
        if context.thread.watched and isinstance(made.val, torch.Tensor):
            save, itself = _save_of(context, made.val, caller()), ref(made)
            if save is not None:
                shown = getattr(made, "unpack_hook", None)  # since torch 2.15; the program's own
                # The record holds this function, which must not hold the record.
                made.get_val = lambda *args: _taken(context, way, save, shown, lambda: native(itself(), *args))

    way.after(wrapper, "__init__", kept)


def _save_of(context: Context, tensor: torch.Tensor, place: Place | None) -> PolicySave | None:
    """Return the save of a tensor that a policy keeps; None if it has no memory or no version (while compiling)."""
    if (
        tensor_state.version_of(tensor) is None
        or type(tensor) not in storages.PLAIN
        or storages.storage_key(tensor) is None
    ):
        return None
    with modes.no_modes():
        digest = None if context.contents is None else context.contents.at_save(tensor)
    save = made(PolicySave, tensor, tensor, engine_state.next_node() - 1, place, digest)
    context.live.add(save)
    return save


def _taken(
    context: Context,
    way: Way,
    save: PolicySave,
    shown: Callable[[object], object] | None,
    native: Callable[[], object],
) -> object:
    """Return what the second run takes in place of computing a tensor again: the kept bytes where they are preserved.

    `shown` makes of what was kept what the run takes. Raises what PyTorch raises where the version has moved.
    """
    if save.kept is not None:
        return save.kept if shown is None else shown(save.kept)
    way.guarded(_compare, context, save)
    try:
        return native()
    except RuntimeError as error:
        raised = error
        way.guarded(_refused, context, save, raised)
        raise


def _compare(context: Context, save: PolicySave) -> None:
    """If the bytes have changed, note it with the region that runs again. It is reported if the region then drifts.

    PyTorch is silent where the write moved another version counter, or where the program has allowed such writes. That
    is no fault if the second run computes the same from the changed bytes, as with `relu_`.
    """
    regions: list[CheckpointRegion] = context.thread.again
    if not regions or not context.bus.listeners:
        return
    if save.alias._version != save.version:
        regions[-1].count_on.add(storages.storage_key(save.alias))
    digest = None if save.digest is None else fingerprint_aside(save.alias)
    if change(save.digest, digest) is not Change.NO:
        if save.alias._version == save.version:
            _note_writes(context, save)
        regions[-1].changed.append(clobbers.later(save, None, digest, reading(), context.memory))


def _note_writes(context: Context, save: PolicySave) -> None:
    """Note with a save the writes that moved another version counter, such as that of a view by `_unsafe_view`."""
    key, marked = storages.storage_key(save.alias), save.suspected()
    met = {noted.moment for noted, _ in marked.writes}
    since = write_history.since(context.memory, save.moment)
    marked.writes += [(noted, save.version) for noted in since if noted.key == key and noted.moment not in met]


def _refused(context: Context, save: PolicySave, error: RuntimeError) -> None:
    if context.bus.listeners:
        found = clobbers.clobber_of(save, None, reading(), context.memory)
        found = replace(found, message=str(error))
        refusals.remember(error, found)
        context.bus.tell([found], error)
