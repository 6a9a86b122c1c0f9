"""Copies the bytes that backward still needs just before a write changes them, and no more than these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from noclobber.model.reports.kept import Kept
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, Needed, Suspect, compare
from noclobber.observe.core.seen.records import Record
from noclobber.observe.core.seen.sites import Place, caller, site_of
from noclobber.observe.core.seen.written import Written, tensors
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import fingerprint, fingerprint_aside, same
from noclobber.observe.witness.layout import geometry, once, reach, share_bytes, span_of, touch

Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, each with the copy of its bytes."""


def keep(context: Context, handles: list[Handle], noted: Record, known: Copies | None = None) -> None:
    """Copy the bytes of these saves that a write is about to change, if they have no copy yet. Report each copy.

    Saves whose bytes lie within those of another save share its copy, and a copy dies with its saves. Saves also share
    the copies in `known` if the bytes are the same. A copy that is written itself is copied again. A save whose bytes
    have changed already cannot be preserved: its read will raise.
    """
    copies: Copies = []
    for handle in sorted(handles, key=lambda handle: -handle.alias.numel()) if len(handles) > 1 else handles:
        suspect, alias = handle.suspected(), handle.alias
        if suspect.kept is not None and storages.storage_key(alias) != noted.key:
            continue
        if isinstance(handle, Needed) and _is_unread(handle, noted):
            continue
        off = noted.written.only_moves or not touch(noted.geometry, geometry(alias))
        if off or handle in context.put_off:
            suspect.spared = True
            compare(context.contents, [handle])
            continue
        with modes.aside():
            if handle.digest is not None and not same(handle.digest, fingerprint(alias)):
                continue
            kept = found(copies, alias)
            if kept is None:
                kept = _found_alike(known or (), alias)
            if kept is None:
                kept = copy(context, alias)
                if kept is None:
                    continue
                copies.append((alias, kept))
                tell(context, noted.place, noted.written.op, handle, kept)
            if handle.digest is not None and geometry(kept)[2] != geometry(alias)[2]:
                handle.digest = fingerprint(kept)  # a fingerprint depends on the order of the bytes
        give(context, handle, suspect, kept)


def give(context: Context, handle: Handle, suspect: Suspect, kept: torch.Tensor) -> None:
    """Let a save read a copy. It needs the old memory no more, which must be freed when the program drops it."""
    old, suspect.kept, handle.alias, handle.shown = handle.alias, kept, kept, None
    if handle.follows:  # it is looked for on its old memory too
        context.live.add(handle)
    else:
        context.live.moved(handle, old)


def tell(context: Context, place: Place | None, op: str, handle: Handle, kept: torch.Tensor) -> None:
    """Report the copy of a save that was made before an operator at a place."""
    size, again = storages.storage(kept).nbytes(), isinstance(handle, Needed)
    context.bus.keep(Kept(site_of(place), op, site_of(handle.place), size, 1, again))


NOT_COPIED = "writes to saves that PyTorch cannot copy"


def copy(context: Context, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of what a write may change; None of what PyTorch cannot copy, as some quantized tensors."""
    try:
        return _copy(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        context.bus.not_seen(NOT_COPIED)
        return None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same layout but without gaps. Each element is copied once, also of an expanded tensor."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.clone()
    copy = once(tensor).clone()
    return copy if copy.shape == tensor.shape else copy.expand(tensor.shape)


def _is_unread(needed: Needed, noted: Record) -> bool:
    needed.unread |= noted.written.is_statistics and needed.in_forward()
    return needed.unread


def found(copies: Iterable[tuple[torch.Tensor, torch.Tensor]], alias: torch.Tensor) -> torch.Tensor | None:
    """Return the part of one of these copies that stands for `alias`; None if none holds all of it."""
    parts = (_part(copied, copy, alias) for copied, copy in copies)
    return next((part for part in parts if part is not None), None)


def _found_alike(copies: Iterable[tuple[torch.Tensor, torch.Tensor]], alias: torch.Tensor) -> torch.Tensor | None:
    part = found(copies, alias)
    return part if part is not None and same(fingerprint(part), fingerprint(alias)) else None


def _part(copied: torch.Tensor, copy: torch.Tensor, alias: torch.Tensor) -> torch.Tensor | None:
    """Return the part of a copy that stands for `alias`; None unless the copy holds all of it, without gaps."""
    special = any(one.is_conj() or one.is_neg() or one.is_nested for one in (copied, alias))
    if (
        special
        or not copied.layout is alias.layout is torch.strided
        or copied.dtype != alias.dtype
        or not copied.is_contiguous()
    ):
        return None
    offset = alias.storage_offset() - copied.storage_offset()
    if offset < 0 or offset + reach(alias) >= copied.numel():
        return None
    return copy.as_strided(alias.shape, alias.stride(), copy.storage_offset() + offset)


def keep_overlapped(
    context: Context, written: Written, args: tuple[object, ...], kwargs: dict[str, object]
) -> Callable[[], None] | None:
    """Copy the arguments that an operator is about to overwrite through another. Returns what to call after it: it
    gives the copies to the saves that the operator has made; None if there are none.

    When such a write is seen, nothing is saved. Autograd itself saves a clone of the written argument where it needs it
    (torch 2.13; tests/observe/preserve/test_preserve_own_saves.py).
    """
    if not torch.is_grad_enabled() or written.only_moves:
        return None
    writes = list(tensors(written, args, kwargs))
    beside = [one for one in _beside(written, args, kwargs) if any(share_bytes(one, other) for other in writes)]
    if not beside:
        return None
    with modes.aside():
        made = [(tensor_state.detach(one), copy(context, tensor_state.detach(one))) for one in beside]
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
    kept = found(copies, handle.alias)
    if kept is None:
        return
    handle.suspect = suspect = Suspect()
    give(context, handle, suspect, kept)
    if handle.digest is not None:
        handle.digest = fingerprint_aside(kept)
    tell(context, place, op, handle, kept)
