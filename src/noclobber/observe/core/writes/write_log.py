"""The code that runs on every write: closures that do a few attribute reads and an append."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from sys import getrefcount

import torch

from noclobber.model.seen.live_saves import EVERYWHERE
from noclobber.observe.core.context import IN_GRAPH, After, Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.history import MOST_LOOKS
from noclobber.observe.core.seen.records import Record, record
from noclobber.observe.core.seen.sites import place_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.core.writes import write_kernels
from noclobber.observe.core.writes.kernel_functions import Before
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import spare_key
from noclobber.observe.torch_api.frames import frame_above
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.tensor_state import is_leaf
from noclobber.observe.witness.layout import span_of

_WITHOUT_STORAGE = "writes to tensors without a storage (nested, MKL-DNN)"


def before(context: Context) -> Before:
    """Return what the kernels call before each write."""
    return _to_saves(context) if context.watching else _every(context)


def _every(context: Context) -> Before:
    """Return it for `install`: it remembers every write that may move a version."""
    memory, without_storage = context.memory, context.bus.not_seen
    frame_of, storage_key, log, thread = sys._getframe, storages.storage_key, memory.log, memory.thread

    def before(written: Written, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None:
            without_storage(_WITHOUT_STORAGE)
            return
        log(record(written, tensor, key, place_of(frame_of()), thread))

    return before


def _to_saves(context: Context) -> Before:
    """Return it for `watch`: it passes a write to the live saves of its storage.

    What an operator made in the graph shares its version counter with its saves. So it is enough to remember the write:
    the moved version will lead to it. The first writes of a line are asked for live saves all the same, as only now its
    frame is there to be looked at. A tensor made from `.data` may have a version counter of its own, a leaf too. With
    gradients on, a write to a tensor outside of the graph is remembered too if other tensors share the memory: it may
    bring the tensor into the graph, and PyTorch then refuses views that were made before.

    Operators write most often to memory that they have just made: torch has allocated it, no other tensor shares it,
    and nothing in Python holds the tensor. No save can lie on it, and nobody reads it again. To tell so costs less than
    to file the saves that came since the last such write. It cannot be told of a tensor that Python holds: the program
    may have exported it (DLPack), and saved what lies on its memory in another storage.
    """
    live, memory, without_storage = context.live, context.memory, context.bus.not_seen
    beside = live.beside
    frame_of, unsorted, thread = sys._getframe, live.unsorted, memory.thread
    storage_key, plain = storages.storage_key, torch.Tensor
    attentive, attended = context.attentive, context.attended
    tracking, untracked_writes, meet = torch.is_grad_enabled, context.untracked, context.parts.meet
    unseen = context.unseen
    is_inside, is_only_holder, followed = spare_key.below_versions, storages.is_only_holder, memory.followed
    references = write_kernels.references_of_new(context)
    looks = memory.looks
    contents = context.contents
    begins = contents.begins_to_write if contents is not None else None

    def before(written: Written, tensor: torch.Tensor) -> After | None:
        in_graph, is_plain = tensor.requires_grad, type(tensor) is plain
        is_new = not in_graph and getrefcount(tensor) == references and is_plain and is_inside()
        if is_new and not (attentive or (context.keeping and written.leaves_storage)) and is_only_holder(tensor):
            return None
        key = storage_key(tensor)
        if key is None:
            without_storage(_WITHOUT_STORAGE)
            return None
        # First: whatever fails below, the program must not go on with a gradient where PyTorch raises.
        if written.detaches and not context.core.guarded(context.parts.detached, context, tensor):
            context.parts.detached_by_number(context, tensor)
        off = not tracking()
        # Where what is written is outside of the graph or a leaf, nothing is hidden from autograd.
        untracked = off and (
            in_graph and not tensor.is_leaf if (base := tensor._base) is None else in_graph or base.requires_grad
        )
        attends = key in attended
        found = untracked_writes.before(written, tensor, key, frame_of(1)) if attends or untracked else None
        if attends or off:
            for look in unseen:
                look(written, tensor, key, frame_of(1))
        after, hidden = (None, False) if found is None else found
        if context.keeping and (written.resizes or written.leaves_storage):
            after = _both(context, after, _moving(context, tensor, key))
        of_graph = attended.get(IN_GRAPH, {}) if in_graph else {}
        if attentive or attends or of_graph:
            frame = frame_above(2)
            for look in attentive | attended.get(key, {}) | of_graph:  # each once
                after = _both(context, after, look(written, tensor, key, frame))
        counted = in_graph and is_plain and not (written.uncounted or written.detaches or is_leaf(tensor))
        if not counted or context.careful or (untracked and tensor._is_view()):
            if begins is not None and not counted:
                begins(key)
            if unsorted:
                live.sort()
            if beside is not None or key in live.by_storage:
                where = EVERYWHERE if written.resizes or written.leaves_storage else span_of(tensor)
                (handles, other), shared = live.meeting(key, where, tensor)
                if handles or other is not None or shared:
                    noted = record(written, tensor, key, place_of(frame_of(1)), thread, hidden)
                    if handles:
                        after = _both(context, after, meet(context, handles, tensor, noted))
                    # The other saves there keep their bytes. If their version moves, the log leads to this write.
                    moves = not (written.uncounted or thread.preserving)
                    needed = key in followed or memory.is_reread(key)
                    if needed or (moves and (shared or (counted and other is not None))):
                        memory.log(noted)
                    elif moves and other is not None:
                        after = _both(context, after, _log_if_moved(context, other, noted))
                    return after
            if (
                not in_graph
                and ((off and key not in followed) or is_inside() or is_only_holder(tensor))
                and not memory.is_reread(key)
            ):
                return after
        noted = record(written, tensor, key, place := place_of(frame_of(1)), thread, hidden)
        memory.log(noted)
        if in_graph and place is not None and (left := looks.get(line := (id(place[0]), place[1]), MOST_LOOKS)):
            looks[line] = left - 1
            if handles := live.at(key):
                context.core.guarded(context.parts.look, context, handles, tensor, noted)
        return after

    return before


def _log_if_moved(context: Context, save: Handle, noted: Record) -> After:
    """Return what to call after a write: it remembers the write if it has moved the version of a save."""
    version = save.alias._version

    def written() -> None:
        if save.alias._version != version:
            context.memory.log(noted)

    return context.core.entry(written)


def _moving(context: Context, tensor: torch.Tensor, key: int) -> After:
    """Return what to call after a write that may give a tensor other memory than that of `key`, where it is now."""
    left = storages.storage(tensor)

    def moved() -> None:
        there, elsewhere = storages.storage(tensor), storages.storage_key(tensor)
        if there is left and elsewhere != key:
            context.live.file_anew(key)
        if context.contents is not None and elsewhere is not None and there is not left:
            context.contents.moves(key, left)
            context.contents.moves(elsewhere, there)

    return context.core.entry(moved)


def _both(context: Context, first: After | None, second: After | None) -> After | None:
    if first is None or second is None:
        return first or second

    def both() -> None:
        first()
        second()

    return context.core.entry(both)


def may_rest(context: Context, outputs: Iterable[object], create_graph: bool) -> bool:
    """Return True if a backward from these outputs that runs no Python may go unlogged, as it writes to no save.

    Without `create_graph` the engine adds up gradients in place only if it holds the last reference. The only other
    memory it writes that others may hold is a leaf's `.grad` (torch 2.13, input_buffer.cpp and accumulate_grad.h;
    tests/observe/preserve/test_preserve_gradients.py). If no bytes are preserved, that write is reported afterwards.
    DDP's own hooks write into its buckets (tests/observe/preserve/test_preserve_ddp.py).
    """
    if not context.careful:
        return True
    if context.careful != context.keeping or create_graph:
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    live = context.live
    for gradient in _gradients_of(context, list(outputs)):
        key = storages.storage_key(gradient)
        if key is not None and live.at(key):
            return False
    return True


def _gradients_of(context: Context, outputs: list[object]) -> Iterable[torch.Tensor]:
    """Return the existing gradients of leaves that a backward from these outputs may add to."""
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    if context.native is not None and len(tensors) == len(outputs):
        return context.native.gradients_behind(tensors)
    leaves = [tensor for tensor in tensors if graph.maker_of(tensor) is None]
    for node in graph.walk(graph.roots_of(outputs)):
        if node._sequence_nr() == graph.UNNUMBERED and (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
    return [leaf.grad for leaf in leaves if leaf.grad is not None]
