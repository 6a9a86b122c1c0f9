"""Keeping the bytes that backward still needs, just before a write changes them: as few as will do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from noclobber.observe import internals, testimony
from noclobber.observe.contents import fingerprint, same
from noclobber.observe.records import Record, geometry
from noclobber.observe.saves import Handle, Suspect


def keep(handles: list[Handle], noted: Record, tell: Callable[[Record, Handle, int], None]) -> None:
    """A write is about to happen: copy what it changes of these saves, unless that was done before; tell of each copy.

    Saves whose bytes lie within those of another share its copy, and a copy dies with the saves that it stands in for.
    A save whose bytes are no longer those that were saved is past help: its read will raise.
    """
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    for handle in sorted(handles, key=lambda handle: -handle.alias.numel()) if len(handles) > 1 else handles:
        suspect, alias = handle.version, handle.alias
        if not isinstance(suspect, Suspect) or suspect.kept is not None:
            continue
        if noted.written.only_moves or not testimony.touch(noted.geometry, geometry(alias)):
            suspect.spared = True
        elif handle.digest is None or same(handle.digest, fingerprint(alias)):
            parts = (_part(copied, copy, alias) for copied, copy in copies)
            suspect.kept = next((part for part in parts if part is not None), None)
            if suspect.kept is None:
                with internals.unlogged():
                    suspect.kept = alias.clone()
                copies.append((alias, suspect.kept))
                tell(noted, handle, suspect.kept.nbytes)
            # Nothing of the save needs the old memory now, which is to go when the program lets it go.
            handle.alias, handle.plan = suspect.kept, None


def _part(copied: torch.Tensor, copy: torch.Tensor, alias: torch.Tensor) -> torch.Tensor | None:
    """The place of `alias` in the copy of another tensor; None unless that one holds all of it, without a gap."""
    marked = any(one.is_conj() or one.is_neg() for one in (copied, alias))
    if marked or copied.dtype != alias.dtype or not copied.is_contiguous():
        return None
    offset = alias.storage_offset() - copied.storage_offset()
    last = offset + sum((size - 1) * stride for size, stride in zip(alias.shape, alias.stride(), strict=True))
    if offset < 0 or last >= copied.numel():
        return None
    return copy.as_strided(alias.shape, alias.stride(), copy.storage_offset() + offset)
