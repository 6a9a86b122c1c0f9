"""From what was recorded to the model's Clobber, made only when there is something to say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch

from noclobber.model.clobber import Clobber
from noclobber.model.events import Read, Save, Tensor, Via, Write
from noclobber.model.overlap import Region, overlap
from noclobber.observe.core import save_hooks, unread_saves
from noclobber.observe.core.fingerprints import (
    Digest,
    differs,
    differs_in_numbers,
    fingerprint,
    same,
    same_but_for_zeros,
)
from noclobber.observe.core.history import Memory
from noclobber.observe.core.records import Backward, Geometry, Record, geometry, shape_of, strided, tensor_on
from noclobber.observe.core.save_hooks import Handle, Suspect
from noclobber.observe.core.sites import Place, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.describe import torch_messages
from noclobber.observe.describe.tensor_names import name_of
from noclobber.observe.torch_api import graph, private

STOPPED = "an in-place write was stopped: autograd still keeps the tensor for backward"
CHANGED = "a tensor that backward needs holds other bytes than were saved, though its version did not move"


def region(geometry: Geometry | None) -> Region | None:
    """The bytes of a recorded geometry; None for a layout without strides or with symbolic sizes."""
    if (known := strided(geometry)) is None:
        return None
    offset, shape, strides, dtype = known
    size = dtype.itemsize
    return Region(offset * size, tuple(shape), tuple(stride * size for stride in strides), size)


def may_touch(saved: torch.Tensor, written: Geometry | None) -> bool:
    """Whether the spans of two tensors meet: a quick look, exact only where it says no."""
    one, other = region(geometry(saved)), region(written)
    if one is None or other is None:
        return True
    return one.first() < other.end() and other.first() < one.end()


def touch(one: Geometry | None, other: Geometry | None) -> bool:
    """Whether two tensors of one storage share a byte: exact for strided ones, True where that can't be told."""
    first, second = strided(one), strided(other)
    if first is None or second is None:
        return True
    return _touch(second[0] * second[3].itemsize - first[0] * first[3].itemsize, first[1:], second[1:])


@lru_cache(maxsize=4096)
def _touch(apart: int, one: Any, other: Any) -> bool:
    """`apart` is how many bytes later the second tensor begins."""
    first, second = (region((0, *layout)) for layout in (one, other))
    return first is None or second is None or overlap(first, replace(second, offset=apart))


def unnamed(alias: torch.Tensor) -> Tensor:
    """A tensor as far as it can be told without looking at the user's variables, which keeps these alive for longer."""
    dtype = str(alias.dtype).removeprefix("torch.")
    return Tensor(shape_of(alias), dtype, str(alias.device), region=region(geometry(alias)))


def tensor_of(alias: torch.Tensor, key: int | None) -> Tensor:
    """How a reader knows a tensor. Looks through the user's frames for its name."""
    shape = shape_of(alias)
    name = name_of(alias, key, sys._getframe(1))
    dtype = str(alias.dtype).removeprefix("torch.")
    where = region(geometry(alias))
    return Tensor(shape, dtype, str(alias.device), name and name.text, name.kind if name else "tensor", where)


def is_read(handle: object, node: Any) -> bool:
    """Whether the node reads what was packed.

    Batch norm keeps its running statistics, and reads them in evaluation only (torch 2.13; test_unread.py). As
    arguments of a checkpoint, which no node keeps, their update is not a clobber either: what matters is what is
    computed anew.
    """
    kept = (getattr(node, f"_raw_saved_{name}", None) for name in unread_saves.fields(node))
    if any(raw is not None and raw.data is handle for raw in kept):
        return False
    suspect = getattr(handle, "version", None)
    if not isinstance(suspect, Suspect) or not all(one.written.is_statistics for one, _ in suspect.writes):
        return True
    return not suspect.writes or bool(field_of(handle, node))


def is_other(handle: object, node: Any, tensor: torch.Tensor, before: Digest) -> bool:
    """Whether a node reads other numbers than were saved. `tensor` is what it reads, whose bytes are not those of the
    fingerprint `before`; to most nodes the sign of a zero makes no difference."""
    if not is_read(handle, node):
        return False
    return unread_saves.minds_sign_of_zero(node, field_of(handle, node)) or not same_but_for_zeros(tensor, before)


def is_other_later(node: Any, field: str, tensor: torch.Tensor, digest: Digest, before: Digest) -> torch.Tensor | bool:
    """The same of a field that the node reads on a device, left there. `digest` is the tensor's fingerprint now."""
    if unread_saves.minds_sign_of_zero(node, field):
        return differs(digest, before)
    return differs_in_numbers(tensor, digest, before)


def field_of(handle: object, node: Any) -> str:
    """The name under which a node keeps a handle, of derivatives.yaml; empty where it is not found."""
    for saved in graph.saves_of(node) if node is not None else ():
        if graph.content(saved) is handle:
            return saved.field
    return ""


def clobber_of(handle: Handle, node: Any, backward: Backward, memory: Memory) -> Clobber:
    """The clobber of a handle that is being read by `node`."""
    alias = handle.alias
    current, version = int(alias._version), save_hooks.version_at_save(handle)
    key = private.storage_key(alias)
    save = _save(handle, node, version, tensor_of(alias, key))
    suspect = handle.version
    entries = _between(memory, handle, suspect.writes if isinstance(suspect, Suspect) else [], key, version, current)
    if not entries and save.tensor.name and save.tensor.name.endswith(".grad"):
        entries = _accumulated(memory, handle, key, version)
    writes = writes_of(entries, current, save.tensor)
    message = None
    if current != version:
        try:
            made_by = torch_messages.producer(handle, node, save.field, output=save.is_output)
            message = torch_messages.stale_message(alias, made_by, current, version)
        except RuntimeError as refusal:  # of one of several views: PyTorch comes to this while it words the other
            message = str(refusal)
        writes = tuple(w for w in writes if w.version_before != w.version_after) or writes
    else:
        explained = any(write.overlaps for write in writes)
        if not any(write.via == "undeclared" for write in writes):
            # An operator that lies is named itself, rather than the line inside it.
            writes = _unseen(handle, save.tensor, backward, memory, explained) or writes
    restored = current != version and handle.digest is not None and same(handle.digest, fingerprint(alias))
    read = Read(save.node, site_of(backward.place), call_of(backward))
    return Clobber(save, writes, read, current, message, restored)


def _unseen(handle: Handle, tensor: Tensor, backward: Backward, memory: Memory, explained: bool) -> tuple[Write, ...]:
    """Writes that torch never saw; none where what it saw explains the change."""
    if memory.aliases is not None:
        return memory.aliases.writes(handle, tensor, backward, explained=explained)
    return () if explained else (_window(handle.place, tensor, backward),)


def _window(saved: Place | None, tensor: Tensor, backward: Backward) -> Write:
    """All that is known of a write that nobody saw: it was after the save and before the read."""
    return Write("", site_of(backward.place), via="foreign", tensor=tensor, since=site_of(saved))


def clobber_to_come(handle: Handle, record: Record) -> Clobber:
    """The clobber that a write is about to make. Which node saved is known only of an output that is still there."""
    tensor = handle.tensor()
    producer = tensor.grad_fn if tensor is not None and not tensor._is_view() else None
    node = producer if producer is not None and field_of(handle, producer) else None
    version = int(handle.alias._version)
    counted = not record.written.uncounted and record.version == version
    known = tensor_of(handle.alias, private.storage_key(handle.alias))
    save = _save(handle, node, save_hooks.version_at_save(handle), known)
    writes = writes_of([(record, version)], version + counted, save.tensor)
    return Clobber(save, writes, Read(save.node), version + counted, STOPPED if counted else None)


class Later(NamedTuple):
    """A read whose fingerprint is still on its device: whether it differs, and what makes the clobber if so.

    It holds nothing of the save, whose memory backward is about to give back.
    """

    differs: torch.Tensor | bool
    tell: Callable[[], Clobber | None]
    """What tells of it, if that is no clobber, which it returns."""
    order: int = 0
    """Of several that differ those with a lower one are told first."""


def later(handle: Handle, node: Any, digest: Digest, backward: Backward, memory: Memory) -> Later:
    """What is known of a read on a device, before its bytes have been compared."""
    alias, version = handle.alias, save_hooks.version_at_save(handle)
    save, current = _save(handle, node, version, unnamed(alias)), int(alias._version)
    shown, key, place = weak(alias), private.storage_key(alias), handle.place
    written = handle.version.writes if isinstance(handle.version, Suspect) else []
    entries = _between(memory, handle, written, key, version, current)

    def clobber() -> Clobber:
        tensor = shown()
        known = save.tensor if tensor is None else tensor_of(tensor, key)
        writes = writes_of(entries, current, known)
        explained = any(write.overlaps for write in writes)
        if tensor is not None and not any(write.via == "undeclared" for write in writes):
            same_bytes = save_hooks.handle_of(tensor, -1, place, None)
            writes = _unseen(same_bytes, known, backward, memory, explained) or writes
        elif not explained:
            writes = (_window(place, known, backward),)
        read = Read(save.node, site_of(backward.place), call_of(backward))
        return Clobber(replace(save, tensor=known), writes, read, current)

    # Zeros are looked at where it may be writes that changed their signs: that takes two more fingerprints.
    if entries:
        return Later(is_other_later(node, save.field, alias, digest, handle.digest), clobber)
    return Later(differs(digest, handle.digest), clobber)


def weak(tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """What gives a tensor on the same bytes for as long as their storage is there, without holding that."""
    storage, where = private.storage_ref(tensor), geometry(tensor)
    return lambda: tensor_on(storage, where)


def _save(handle: Handle, node: Any, version: int, tensor: Tensor) -> Save:
    field = handle.field or field_of(handle, node)
    name, site = node.name() if node is not None else "", site_of(handle.place)
    applied = site_of(handle.applied)
    return Save(name, field, tensor, version, site, graph.output_of(node, field) is not None, handle.unchecked, applied)


def call_of(backward: Backward) -> Literal["backward", "grad", "access"]:
    """How the program asked for the read, in the model's words."""
    return "grad" if backward.call == "grad" else "access" if backward.call == "access" else "backward"


def _between(
    memory: Memory, handle: Handle, met: list[Any], key: int | None, version: int, current: int
) -> list[tuple[Record, int]]:
    """The writes that met a save, and those that moved its version from one to another, each with the one before it."""
    entries = met
    if current != version:
        moved = [one for one in _from_recent(memory, key, version, current) if one[0].moment > handle.moment]
        # Of two at one version the write to a tensor in the graph is the later one: it moves the version.
        entries = sorted(met + moved, key=lambda entry: (entry[1], not entry[0].written.uncounted))
    return entries


def _from_recent(memory: Memory, key: int | None, version: int, current: int) -> list[tuple[Record, int]]:
    """Writes remembered without a save of ours. What was written before the save was may be of another storage."""
    return [
        (record, record.version or 0)
        for record in memory.recent
        if record.key == key and version <= (record.version or 0) < current
    ]


_ACCUMULATION = Written("aten::add_", ((0, "self"),), uncounted=False)


def _accumulated(memory: Memory, handle: Handle, key: int | None, version: int) -> list[tuple[Record, int]]:
    """The gradient of a leaf moved on and no operator wrote it: the backward calls since then added to it."""
    since = [(when, place) for when, place in memory.accumulated if when > handle.moment]
    return [
        (Record(_ACCUMULATION, place, key or 0, version + index, None, None, 1, 0, when), version + index)
        for index, (when, place) in enumerate(since)
    ]


def writes_of(entries: list[tuple[Record, int]], current: int, tensor: Tensor) -> tuple[Write, ...]:
    """The model's writes of records, each with the version before it; `current` is the version after the last one."""
    made = []
    for index, (record, before) in enumerate(entries):
        after = entries[index + 1][1] if index + 1 < len(entries) else current
        where = region(record.geometry)
        touches = where is None or tensor.region is None or overlap(where, tensor.region)
        written = Tensor(where.shape if where else (), tensor.dtype, tensor.device, tensor.name, tensor.kind, where)
        made.append(
            Write(
                record.written.op,
                site_of(record.place),
                index,
                _via(record, after > before),
                before,
                after,
                written,
                touches,
                record.step,
                in_forward=record.backwards == 0,
                untracked=record.untracked,
            )
        )
    return tuple(made)


_MOVES: dict[str, Via] = {"data=": "set_data", "swap_tensors": "swap"}


def _via(record: Record, counted: bool) -> Via:
    if record.written.op in _MOVES:
        return _MOVES[record.written.op]
    if record.written.undeclared:
        return "undeclared"
    if not counted:
        return "unversioned" if record.written.uncounted or record.written.fills else "data"
    return "step" if record.step is not None else "operator"


def stale_saves(roots: list[Any], backward: Backward, memory: Memory, seen: set[int]) -> list[Clobber]:
    """The stale saves of a graph, but for the handles in `seen`: ours by their version, others by PyTorch's check."""
    found = []
    for node in graph.walk(roots):
        for saved in graph.saves_of_or_gone(node):
            held = graph.content(saved)
            if isinstance(held, Handle) and id(held) not in seen:
                seen.add(id(held))
                if int(held.alias._version) != save_hooks.version_at_save(held):
                    found.append(clobber_of(held, node, backward, memory))
    for stale in graph.stale(roots):
        found.append(_clobber_of_stale(stale, backward, memory))
    return found


def _clobber_of_stale(stale: graph.Stale, backward: Backward, memory: Memory) -> Clobber:
    node, field = stale.saved.node, stale.saved.field
    key = private.storage_key(stale.tensor)
    tensor = tensor_of(stale.tensor, key)
    number = node._sequence_nr()
    place = memory.thread.history.place_of(number)
    save = Save(
        node.name(), field, tensor, stale.expected, site_of(place), is_output=graph.output_of(node, field) is not None
    )
    entries = [one for one in _from_recent(memory, key, stale.expected, stale.current) if one[0].node > number]
    message = torch_messages.stale_message(
        stale.tensor, torch_messages.produced(stale.tensor), stale.current, stale.expected
    )
    read = Read(node.name(), site_of(backward.place), call_of(backward))
    return Clobber(save, writes_of(entries, stale.current, tensor), read, stale.current, message)


def write_of(noted: Record, tensor: Tensor) -> Write:
    after = None if noted.version is None else noted.version + 1
    return Write(
        noted.written.op,
        site_of(noted.place),
        version_before=noted.version,
        version_after=after,
        tensor=tensor,
        step=noted.step,
        in_forward=noted.backwards == 0,
    )


def read_of(backward: Backward) -> Read:
    call: Literal["backward", "grad"] = "grad" if backward.call == "grad" else "backward"
    return Read("", site_of(backward.place), call)
