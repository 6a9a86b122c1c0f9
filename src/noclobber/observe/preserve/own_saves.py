"""Keeps the bytes that an operator saves and overwrites itself, `h.mul_(h)`: when the write is seen, nothing is saved.

What is copied is the memory of other arguments that the operator overwrites. Autograd itself saves a clone of the
written argument where it needs it (torch 2.13; tests/observe/preserve/test_preserve_own_saves.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, Needed, Suspect
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.core.seen.written import Written, tensors
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.preserve.copy_before_write import Copies
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import fingerprint_aside
from noclobber.observe.witness.layout import share_bytes, span_of


def before(
    context: Context, written: Written, args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[[], None] | None:
    """Copy the arguments that an operator is about to overwrite through another. Returns what to call after it: it
    gives the copies to the saves that the operator has made; None if there are none."""
    if not torch.is_grad_enabled() or written.only_moves:
        return None
    writes = list(tensors(written, args, kwargs))
    beside = [one for one in _beside(written, args, kwargs) if any(share_bytes(one, other) for other in writes)]
    if not beside:
        return None
    with modes.aside():
        made = [(tensor_state.detach(one), copy_before_write.copy(context, tensor_state.detach(one))) for one in beside]
    copies = [(alias, kept) for alias, kept in made if kept is not None]
    if len(copies) < len(made):
        return None
    versions, node, place = [tensor_state.version_of(one) for one in beside], engine_state.next_node(), caller()

    def after() -> None:
        for (alias, kept), version in zip(copies, versions, strict=True):
            for handle in context.live.at(storages.storage_key(alias) or 0, span_of(alias)):
                is_made = handle.suspect is None and handle.version == version and handle.node >= node
                if is_made and not isinstance(handle, Needed):
                    _keep(context, handle, [(alias, kept)], written.op, place)

    return context.core.entry(after)


def _beside(written: Written, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[torch.Tensor]:
    """Return the tensors that an operator gets besides those that it writes, also those in lists."""
    places, names = {at for at, _ in written.arguments}, {name for _, name in written.arguments}
    values = [value for at, value in enumerate(args) if at not in places]
    return tensor_state.tensors_in(values, [value for name, value in kwargs.items() if name not in names])


def _keep(context: Context, handle: Handle, copies: Copies, op: str, place: Place | None) -> None:
    kept = copy_before_write.found(copies, handle.alias)
    if kept is None:
        return
    handle.suspect = suspect = Suspect()
    copy_before_write.give(context, handle, suspect, kept)
    if handle.digest is not None:
        handle.digest = fingerprint_aside(kept)
    copy_before_write.tell(context, place, op, handle, kept)
