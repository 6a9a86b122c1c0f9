"""Makes a Clobber of the model from records, only when there is a finding."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Step, Tensor, Via, Write
from noclobber.model.seen.overlap import overlap
from noclobber.observe.core.seen import handles, unread_saves
from noclobber.observe.core.seen.handles import Handle, OfView
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.records import Backward, Record, here, in_second_run, seen_at
from noclobber.observe.core.seen.sites import Place, identity, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.describe import carried_states, torch_messages
from noclobber.observe.describe.called import calls_to
from noclobber.observe.describe.optimizers import leading_only_to, optimizers
from noclobber.observe.describe.reachable import constants
from noclobber.observe.describe.tensor_names import name_of, user_frames
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import is_engine_reading
from noclobber.observe.torch_api.tensors import shards, storages, tensor_state
from noclobber.observe.witness.digests import (
    Digest,
    all_known,
    differs,
    differs_in_numbers,
    fingerprint,
    same,
    same_but_for_zeros,
)
from noclobber.observe.witness.layout import Geometry, geometry, region, shape_of, strided, tensor_on

STOPPED = "an in-place write was stopped: autograd still keeps the tensor for backward"
CHANGED = "a tensor that backward needs holds other bytes than were saved, though its version did not move"


def unnamed(alias: torch.Tensor) -> Tensor:
    """Return a tensor without its name. To look for a name in the user's variables keeps these alive for longer."""
    return _unnamed(shape_of(alias), geometry(alias), alias.device)


def _unnamed(shape: tuple[int, ...], where: Geometry, device: torch.device) -> Tensor:
    return Tensor(shape, str(where[3]).removeprefix("torch."), str(device), region=region(where))


def tensor_of(alias: torch.Tensor) -> Tensor:
    """Return a tensor with the name that a reader knows it by, from the user's frames. Only a report asks for it."""
    name = name_of(alias, sys._getframe(1))
    if name is not None:
        return replace(unnamed(alias), name=name.text, kind=name.kind, is_state=name.is_state)
    return replace(unnamed(alias), kind="parameter") if isinstance(alias, torch.nn.Parameter) else unnamed(alias)


def later_of(tensor: torch.Tensor) -> Callable[[], Tensor]:
    """Return a function for a report that describes a tensor as it is now, with its name if its bytes are still there.

    It holds no memory. An address says nothing once the memory is gone: another tensor may have got it.
    """
    where, device, storage = geometry(tensor), tensor.device, storages.ref_or_none(tensor)
    is_usual = type(tensor) in storages.PLAIN and where[2] is not None and not tensor.is_nested
    shape = where[1] if is_usual else shape_of(tensor)

    def described() -> Tensor:
        with modes.aside():
            still = _still(storage, where)
            return _unnamed(shape, where, device) if still is None else tensor_of(still)

    return described


def is_read(handle: object, node: Node | None) -> bool:
    """Return True if the node reads what was packed.

    Batch norm saves its running statistics and reads them only in evaluation (torch 2.13; test_unread.py). An update of
    statistics that are arguments of a checkpoint is no clobber either: no node saves these arguments, and only what is
    recomputed counts.
    """
    call = here()
    asked = call.inputs if call is not None and call.inputs and is_engine_reading() else ()
    unread = unread_saves.fields(node) + unread_saves.unasked(node, asked)
    kept = (getattr(node, f"_raw_saved_{name}", None) for name in unread)
    if any(raw is not None and raw.data is handle for raw in kept):
        return False
    writes = handle.writes if isinstance(handle, Handle) else ()
    if not writes or not all(record.written.is_statistics for record, _ in writes):
        return True
    return bool(field_of(handle, node))


def is_other(handle: object, node: Node | None, tensor: torch.Tensor, before: Digest) -> bool:
    """Return True if a node reads other numbers than were saved.

    `tensor` is what it reads; its bytes differ from those of the fingerprint `before`. For most nodes the sign of a
    zero makes no difference.
    """
    if not is_read(handle, node):
        return False
    return unread_saves.minds_sign_of_zero(node, field_of(handle, node)) or not same_but_for_zeros(tensor, before)


def is_other_later(node: Node | None, field: str, digest: Digest, before: Digest) -> torch.Tensor | bool:
    """Return whether a node reads other numbers in a field; a tensor if the answer is still on a device.

    `digest` is the fingerprint of the tensor now, `before` that of the save.
    """
    if unread_saves.minds_sign_of_zero(node, field):
        return differs(digest, before)
    return differs_in_numbers(digest, before)


def field_of(handle: object, node: Node | None) -> str:
    """Return the field in which a node saves a handle, by its name in derivatives.yaml; empty if there is none."""
    for saved in graph.saves_of(node) if node is not None else ():
        if graph.content(saved) is handle:
            return saved.field
    return ""


def clobber_of(handle: Handle, node: Node | None, backward: Backward, memory: Memory) -> Clobber:
    """Return the clobber of a handle that `node` is reading."""
    alias = handle.alias
    current, version = int(alias._version), handle.version
    key = storages.storage_key(alias)
    save = _with_gradient(_save(handle, node, tensor_of(alias)), handle, node)
    entries = _between(memory, handle, key, current)
    if not entries and save.tensor.name and save.tensor.name.endswith(".grad"):
        entries = _accumulated(memory, handle, key)
    if current != version and not save.is_output and not any(before == version for _, before in entries):
        entries = _written_by(node, handle, key) + entries
    writes = writes_of(entries, current, save.tensor)
    message = None
    if current != version:
        try:
            last = entries[-1][0] if entries else None
            made_by = torch_messages.producer(handle, node, save.field, output=save.is_output, last=last)
            message = torch_messages.stale_message(alias, made_by, current, version)
        except RuntimeError as refusal:  # for one of several views PyTorch raises this instead of its stale message
            message = str(refusal)
        # Where PyTorch does not compare versions, a write that moves none counts as well.
        counted = [w for w in writes if w.version_before != w.version_after or (handle.unchecked and w.overlaps)]
        writes = tuple(counted) or writes
    else:
        made = node if save.is_output else graph.source_of(node, save.field)[0]
        writes = _with_unseen(writes, handle, made, save.tensor, backward, memory)
    restored = current != version and handle.digest is not None and same(handle.digest, fingerprint(alias))
    # A save of a leaf follows it to other memory (`set_`): its old bytes say nothing.
    restored &= (saved := handle.tensor()) is None or storages.storage_key(saved) == key
    read = read_of(backward, node.name() if node is not None else "")
    found = Clobber(save, writes, read, current, message, restored)
    if not any(write.step for write in writes):
        return found
    if backward.optimizers is None:
        backward.optimizers = optimizers(sys._getframe(1))
        with modes.plain():
            backward.constants = constants(user_frames(sys._getframe(1)))
            stepped = {one.key for one in memory.recent if one.step and one.moment > handle.moment}
            backward.spent = leading_only_to(stepped, user_frames(sys._getframe(1)))
        backward.calls = calls_to(backward.frame)
    read = replace(read, calls=backward.calls)
    found = replace(found, read=read, optimizers=backward.optimizers)
    found = replace(found, constants=backward.constants, spent=backward.spent)
    return _with_carried(found, key, node, backward, memory)


def _with_carried(found: Clobber, key: int | None, node: Node | None, backward: Backward, memory: Memory) -> Clobber:
    """Return a clobber of stepped weights with the states that led the backward to a node of an earlier iteration."""
    _, boundary = memory.thread.boundaries.get(identity(backward.place), (None, 0))
    if node is None or not node._sequence_nr() < boundary:
        return found
    roots = graph.roots_of(backward.outputs)
    edges = carried_states.edges_into(roots, boundary, lambda one: one is node)
    states, are_all, _ = carried_states.carried(edges, boundary, site_of(backward.place), sys._getframe(1), memory)
    lasts = not any(one.is_renewed for one in states)
    anew = lasts and carried_states.leads_anew(roots, boundary, (key,))
    return replace(found, carried=states, are_all_carried=are_all, is_run_anew=anew)


def _with_unseen(
    writes: tuple[Write, ...], handle: Handle, made: Node | None, tensor: Tensor, backward: Backward, memory: Memory
) -> tuple[Write, ...]:
    """Return the writes of a save whose version did not move, or those that torch did not see, where they explain it.

    `made` is the node that made the tensor, if it is known. An operator with a wrong schema is named itself, not a line
    inside it.
    """
    if any(write.via == "undeclared" for write in writes):
        return writes
    if (shard := shards.shard_of(storages.storage_key(handle.alias))) is not None:
        return _gathered(handle, shard, tensor, backward, memory)
    explained = any(write.overlaps for write in writes)
    if memory.foreign_writers is not None:
        return memory.foreign_writers.writes(handle, made, tensor, backward, explained=explained) or writes
    return writes if explained else (_window(handle.place, tensor, backward),)


def _gathered(handle: Handle, shard: int, tensor: Tensor, backward: Backward, memory: Memory) -> tuple[Write, ...]:
    """Return the steps of a shard since the save. Its parameter was gathered again afterwards, into saved memory.

    Writes that were seen there count for nothing: gathering is one of them, and while FSDP2 had freed the memory it may
    have been another tensor's.
    """
    steps = [(one, 0) for one in memory.recent if one.key == shard and one.step and one.moment > handle.moment]
    writes = writes_of(steps, 0, tensor) or (_window(handle.place, tensor, backward),)
    return tuple(replace(write, via="gathered", overlaps=True, tensor=tensor) for write in writes)


def _window(saved: Place | None, tensor: Tensor, backward: Backward) -> Write:
    """Return a write that nobody saw. Only the window is known: after the save and before the read."""
    return Write("", site_of(backward.place), via="foreign", tensor=tensor, since=site_of(saved))


def clobber_to_come(handle: Handle, target: torch.Tensor, record: Record) -> Clobber:
    """Return the clobber that a write to `target` is about to make, and that is stopped.

    Its node is known only if the save is an output still alive.
    """
    tensor = handle.tensor()
    producer = tensor.grad_fn if tensor is not None and not tensor._is_view() else None
    node = producer if producer is not None and field_of(handle, producer) else None
    version = int(handle.alias._version)
    counted = not record.written.uncounted and tensor_state.share_version(target, handle.alias)
    save = _save(handle, node, tensor_of(handle.alias))
    writes = writes_of([(record, version)], version + counted, save.tensor)
    return Clobber(save, writes, Read(save.node), version + counted, STOPPED if counted else None, stopped=True)


class Later(NamedTuple):
    """A read whose fingerprint is still on its device: whether it differs, and what to call if so.

    It does not hold the save, as backward is about to free that memory.
    """

    differs: torch.Tensor | bool
    tell: Callable[[], Clobber | None]
    """Returns the clobber. If the difference is no clobber it reports it in another way and returns None."""
    order: int = 0
    """Of several reads that differ, those with a lower order are reported first."""


def settled(waiting: list[Later]) -> list[Clobber | None]:
    """Return what those tell that differ. The program waits for their devices."""
    changed = all_known([one.differs for one in waiting])
    return [one.tell() for one, differs in zip(waiting, changed, strict=True) if differs]


def later(handle: Handle, node: Node | None, digest: Digest, backward: Backward, memory: Memory) -> Later:
    """Return what is known of a read on a device before its bytes have been compared."""
    alias = handle.alias
    save, current = _save(handle, node, unnamed(alias)), int(alias._version)
    reader = node.name() if node is not None else ""
    shown, key, place = weak(alias, geometry(alias)), storages.storage_key(alias), handle.place
    entries = _between(memory, handle, key, current)

    def clobber() -> Clobber:
        tensor = shown()
        known = save.tensor if tensor is None else tensor_of(tensor)
        writes = writes_of(entries, current, known)
        if tensor is not None:
            again = handles.handle_of(tensor, -1, place, None)
            writes = _with_unseen(writes, again, None, known, backward, memory)
        elif not any(write.overlaps for write in writes):
            writes = (_window(place, known, backward),)
        return Clobber(replace(save, tensor=known), writes, read_of(backward, reader), current)

    return Later(is_other_later(node, save.field, digest, handle.digest), clobber)


def weak(tensor: torch.Tensor, where: Geometry) -> Callable[[], torch.Tensor | None]:
    """Return a function for a tensor on the same bytes, which lie `where`. It holds no storage, and returns None once
    that is gone, or where no tensor can be made of its geometry."""
    return partial(_still, storages.ref_or_none(tensor), where)


def _still(storage: storages.StorageRef | None, where: Geometry) -> torch.Tensor | None:
    return None if storage is None or strided(where) is None else tensor_on(storage, where)


def _save(handle: Handle, node: Node | None, tensor: Tensor) -> Save:
    site, version = site_of(handle.place), handle.version
    if isinstance(handle, handles.Argument):
        return Save("", "argument", tensor, version, site)
    field, name = handle.field or field_of(handle, node), node.name() if node is not None else ""
    applied = site_of(handle.applied)
    return Save(name, field, tensor, version, site, graph.output_of(node, field) is not None, handle.unchecked, applied)


def _with_gradient(save: Save, handle: Handle, node: Node | None) -> Save:
    """Return a save that also says whether its tensor requires a gradient, as far as that is known."""
    if save.is_output:
        return save
    saved = handle.tensor()
    is_constant = (saved is not None and not saved.requires_grad) or graph.is_constant(node, save.field)
    return replace(save, is_constant=is_constant, is_leaf=graph.is_leaf(node, save.field))


def _between(memory: Memory, handle: Handle, key: int | None, current: int) -> list[tuple[Record, int]]:
    """Return the writes that met a save and those that moved its version, each with the version before it."""
    met, version = list(handle.writes), handle.version
    if current == version:
        # `torch.kron` saves views of its operands that have version counters of their own (torch 2.10 to 2.15;
        # tests/observe/core/test_saved_tensors.py).
        return met or [(one, version) for one in memory.recent if one.key == key and one.moment > handle.moment]
    recent = _from_recent(memory, key, version, current)
    moved = [entry for entry in recent if entry[0].moment > handle.moment]
    if not any(before == version for _, before in moved):  # then it may be the write that was seen last before
        earlier = [entry for entry in recent if entry[0].moment <= handle.moment]
        moved += [one for one in earlier[-1:] if torch_messages.is_by_its_own_operator(one[0], handle)]
    # Of two writes at one version, the write to a tensor in the graph comes later: it moves the version.
    seen = {noted.moment for noted, _ in met}
    moved = [entry for entry in moved if entry[0].moment not in seen]
    return sorted(met + moved, key=lambda entry: (entry[1], not entry[0].written.uncounted))


def _written_by(node: Node | None, handle: Handle, key: int | None) -> list[tuple[Record, int]]:
    """Return the write of the operator that made a save and put the tensor into the graph: `t.addcmul_(t, w)`.

    Only writes to tensors in the graph are remembered that meet no save yet. A node of a write through a view does not
    tell its operator.
    """
    tensor = handle.tensor()
    if node is None or tensor is None:
        return []
    through_view = torch_messages.stands_for_a_view(node)
    op = "" if through_view else graph.operator_of(node.name())
    target = tensor._base if through_view else tensor
    if op is None or target is None or not torch_messages.made_by(target, node):
        return []
    written = Written(f"{op}_" if op else "", ((0, "self"),), uncounted=False)
    where, version = geometry(handle.alias), handle.version
    record = Record(written, handle.place, key or 0, version, where, None, 0, handle.node, handle.moment, True)
    return [(record, version)]


def _from_recent(memory: Memory, key: int | None, version: int, current: int) -> list[tuple[Record, int]]:
    """Return the remembered writes at these versions. Those from before the save may belong to an earlier storage."""
    return [
        (record, record.version or 0)
        for record in memory.recent
        if record.key == key and version <= (record.version or 0) < current
    ]


_ACCUMULATION = Written("aten::add_", ((0, "self"),), uncounted=False)


def _accumulated(memory: Memory, handle: Handle, key: int | None) -> list[tuple[Record, int]]:
    """Return the backward calls since the save as writes to the gradient of a leaf: they added to it."""
    since = [(when, place) for when, place in memory.accumulated if when > handle.moment]
    return [
        (Record(_ACCUMULATION, place, key or 0, version, None, None, 1, 0, when, False), version)
        for version, (when, place) in enumerate(since, handle.version)
    ]


def writes_of(entries: list[tuple[Record, int]], current: int, tensor: Tensor) -> tuple[Write, ...]:
    """Return records, each with the version before it, as writes of the model. `current` is the last version."""
    made = []
    for index, (record, before) in enumerate(entries):
        after = entries[index + 1][1] if index + 1 < len(entries) else current
        where = region(record.geometry)
        again, seen = in_second_run(record), seen_at(record.place)
        is_same_line = index > 0 and entries[index - 1][0].place == record.place
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
                _step_of(record),
                in_forward=again or not record.in_backward,
                nested=record.in_backward > 1,
                untracked=record.untracked and not record.in_backward,
                again=again,
                holders=seen.holders if seen else None,
                apart=seen.apart if seen else (),
                is_widest=seen is not None and seen.is_widest,
                modules=seen.modules if seen else (),
                calls=seen.calls if seen and not is_same_line else (),
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
    return "step" if _step_of(record) is not None else "operator"


def _step_of(record: Record) -> Step | None:
    """Return the step that made a write; None where its closure did."""
    step, site = record.step, site_of(record.place)
    return None if step is not None and step.is_of_torch and site != step.site else step


_MOST_ALIKE = 16
"""Stale saves of one line and field that are described."""


_APART = 4
"""The node of an operator that writes to a view lies inside a CopySlices, which shows none of it. Its number is so much
less at most (torch 2.10 to 2.15; tests/observe/core/test_seen.py)."""


def stale_saves(backward: Backward, memory: Memory, seen: set[int]) -> list[Clobber]:
    """Return the stale saves of a call's graph, except the handles whose ids are in `seen`; adds the ids of the others.

    Handles are stale by their version, other saves by PyTorch's own check. Of a line whose every turn saves and writes,
    a few are described, and the others are told as the last of these: each description goes through all writes since.
    """
    roots, found = graph.roots_of(backward.outputs), list[Clobber]()
    alike: defaultdict[object, list[Clobber]] = defaultdict(list)
    for held, node, field in _saves_of(list(graph.walk(roots)), memory):
        if id(held) not in seen:
            seen.add(id(held))
            if int(held.alias._version) != held.version:
                told = alike[identity(held.place), node.name(), field]
                if len(told) < _MOST_ALIKE:
                    told.append(clobber_of(held, node, backward, memory))
                found.append(told[-1])
    return found + [_clobber_of_stale(stale, backward, memory) for stale in graph.stale(roots)]


def _saves_of(nodes: list[Node], memory: Memory) -> Iterator[tuple[Handle, Node, str]]:
    """Yield the handles of the saves of nodes, with the node and the field."""
    for node in nodes:
        for saved in graph.saves_of_or_gone(node):
            if isinstance(held := graph.content(saved), Handle):
                yield held, node, saved.field
    inside = [node for node in nodes if torch_messages.stands_for_a_view(node)]
    writes = {(one.node, identity(one.place)) for one in memory.recent if inside}
    for held in memory.live.all() if writes else ():
        if type(held) in (Handle, OfView) and (held.node, identity(held.place)) in writes:
            yield from ((held, node, "") for node in inside if 0 < node._sequence_nr() - held.node <= _APART)


def _clobber_of_stale(stale: graph.Stale, backward: Backward, memory: Memory) -> Clobber:
    node, field = stale.saved.node, stale.saved.field
    key = storages.storage_key(stale.tensor)
    tensor = tensor_of(stale.tensor)
    number, is_output = node._sequence_nr(), graph.output_of(node, field) is not None
    save = Save(node.name(), field, tensor, stale.expected, site_of(memory.place_of(number)), is_output)
    entries = [entry for entry in _from_recent(memory, key, stale.expected, stale.current) if entry[0].node > number]
    message = torch_messages.stale_message(
        stale.tensor, torch_messages.produced(stale.tensor), stale.current, stale.expected
    )
    writes = writes_of(entries, stale.current, tensor)
    return Clobber(save, writes, read_of(backward, node.name()), stale.current, message)


def write_of(noted: Record, tensor: Tensor) -> Write:
    """Return a record as a Write of the model that moves the version by one."""
    after = None if noted.version is None else noted.version + 1
    return Write(
        noted.written.op,
        site_of(noted.place),
        version_before=noted.version,
        version_after=after,
        tensor=tensor,
        step=noted.step,
        in_forward=not noted.in_backward,
    )


def read_of(backward: Backward, node: str = "") -> Read:
    """Return the read by a backward call as a Read of the model; `node` is the name of the node that reads."""
    call: Any = backward.call if backward.call in ("grad", "access") else "backward"
    return Read(node, site_of(backward.place), call)
