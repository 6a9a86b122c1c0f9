"""Saves under the program's own saved-tensor hooks. PyTorch checks no versions there, so noclobber records them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

import torch
from torch.autograd.graph import Node

from noclobber.model.reports.error import ClobberError
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Save, Write
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe import policy
from noclobber.observe.core import save_hooks, threads
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.history import ANYWHERE, Memory
from noclobber.observe.core.seen.reads import read_by
from noclobber.observe.core.seen.records import here, latest, moment, reading
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.describe import clobbers, write_history
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes, spare_key
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, OnDevice, differs, fingerprint, order, same, stored_like
from noclobber.observe.witness.layout import Geometry, geometry
from noclobber.observe.witness.witness import Change, Witness, change

CHANGED_INSIDE = (
    "a write changed what the program's pack hook returned, inside of an object where noclobber cannot keep it"
)
_MOST_ELSEWHERE = 4096
"""Fingerprints of what the program's hooks keep elsewhere that are remembered."""
Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], Any]


class _Packed(Witness):
    """Memory that the program's pack hook returned in place of that of the saved tensor.

    It has no fingerprint where only the version tells: contents are not watched, or a device may still be copying.
    """

    __slots__ = ("original", "spare")
    original: Digest
    """The fingerprint of the saved tensor, where the memory may be a copy of it that another thread fills."""
    spare: Handle | None
    """The handle that gets the copy, where bytes are preserved."""


class UserSave(Witness):
    """A save under the program's hooks: `value`, which the program's pack hook returned, and what the tensor was like.

    It holds no tensor itself, because hooks that move the data elsewhere do so to free its memory.
    """

    __slots__ = ("filled_last", "in_sight", "is_copy", "moment", "node", "packed", "place", "spare", "value")

    value: object
    is_copy: bool
    """True if the program's hooks moved the data elsewhere, so that writes do no harm."""
    node: int
    moment: int
    place: Place | None
    spare: Handle | None
    """The handle that gets the copy, where bytes are preserved and the program's hooks hold the memory itself."""
    filled_last: bool
    packed: list[_Packed]
    """The other memory that the program's pack hook returned: its unpack hook makes the tensor of that."""
    in_sight: bool
    """True if the program's pack hook returned tensors, and not an index or a file name that stands for one."""


_Change = tuple[_Packed, torch.Tensor, Digest]
"""Memory whose version or bytes have changed, the tensor that shows it, and its fingerprint now."""


def arm(context: Context, way: Way) -> None:
    """Wrap the hooks that the program pushes until the recorder disarms.

    Hooks that it pushed earlier lie below noclobber's on the stack, and noclobber's call them (`around`). When the
    program pops them, noclobber's must not be popped in their place.
    """
    autograd = private.lookup("_C._autograd")
    push, pop = hook_stack.push_hooks, hook_stack.pop_hooks

    def _push_saved_tensors_default_hooks(pack: Pack, unpack: Unpack) -> None:
        wrapped = way.guarded(_pushed, context, way, pack, unpack)
        push(*wrapped) if wrapped is not None else push(pack, unpack)

    def _pop_saved_tensors_default_hooks() -> None:
        if not way.guarded(threads.has_hooks_on_top, context):
            pop()
            return
        pop()
        try:
            pop()
        finally:
            way.guarded(threads.push_hooks, context)

    way.patches.put(autograd, "_push_saved_tensors_default_hooks", _push_saved_tensors_default_hooks)
    way.patches.put(autograd, "_pop_saved_tensors_default_hooks", _pop_saved_tensors_default_hooks)


def _pushed(context: Context, way: Way, pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack] | None:
    """Return the hooks to push in place of the program's hooks; None to push the program's hooks as they are."""
    if context.watching and getattr(pack, "__module__", "") == "torch.utils.checkpoint":
        return None  # `takers/checkpoint/` watches them
    context.python_in_backward = True
    if context.watching and context.thread.watched and not isinstance(pack, torch.fx.GraphModule):
        return _wrapped(context, way, pack, unpack)  # the compiler reads hooks in the form of a graph
    return None


_wrapping: WeakKeyDictionary[Pack, tuple[Pack, Unpack]] = WeakKeyDictionary()
"""The program's own pair of hooks, by noclobber's pack hook that wraps it."""


def theirs(ask: Callable[[], tuple[Pack, Unpack] | None]) -> tuple[Pack, Unpack] | None:
    """Return what `ask` would return without noclobber's hooks. `ask` reads the pair on top of this thread's stack; it
    returns None if the stack is empty."""
    ours = hook_stack.top_hooks(True)
    if save_hooks.are_ours(ours):
        hook_stack.pop_hooks()
        try:
            return theirs(ask)
        finally:
            hook_stack.push_hooks(*ours)
    pair = ask()
    return _wrapping.get(pair[0], pair) if pair is not None and isinstance(pair[0], FunctionType) else pair


def around(context: Context, pair: hook_stack.Pair) -> hook_stack.Pair:
    """Return hooks of noclobber's that call a pair that the program pushed before this thread was watched."""
    context.python_in_backward = True
    return _wrapped(context, context.core, *_wrapping.get(pair[0], pair))


def _wrapped(context: Context, way: Way, pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    def pack_and_keep(tensor: torch.Tensor) -> object:
        with way.guarded(_logged, context, way) or nullcontext():
            try:
                value = pack(tensor)
            except Exception as error:
                without_own_frames(error)
                raise
        if not context.thread.watched:
            return value
        kept = way.guarded(lambda: _kept(context, tensor, value, place_of(sys._getframe(1))))
        return value if kept is None else kept

    def unpack_and_compare(packed: object) -> object:
        if type(packed) is not UserSave:
            return unpack(packed)
        looked = way.guarded(_looked_at, context, packed) if packed.packed else None
        value, changed = (packed.value, ()) if looked is None else looked
        began = latest[0]
        tensor = unpack(value)
        if changed:
            way.guarded(_tell, context, packed, changed, tensor)
        if isinstance(tensor, torch.Tensor):
            old = way.guarded(_read, context, packed, tensor, began)
            if old is not None:
                return old
        return tensor

    _wrapping[pack_and_keep] = pack, unpack
    return passed_over(pack_and_keep), passed_over(unpack_and_compare)


def _logged(context: Context, way: Way) -> AbstractContextManager[None] | None:
    """Return what logs all writes in a pack hook: it is the program's code, and what it writes may be read again."""
    if not context.thread.watched:
        return None
    around = nullcontext() if spare_key.key_works() else spare_key.logged()
    context.memory.read_again((ANYWHERE,), 1)
    return _logging(context.memory, way, around)


@contextmanager
def _logging(memory: Memory, way: Way, around: AbstractContextManager[None]) -> Iterator[None]:
    try:
        with around:
            yield
    finally:
        way.guarded(memory.read_again, (ANYWHERE,), -1, also_off=True)


def _read(context: Context, packed: UserSave, tensor: torch.Tensor, began: int) -> torch.Tensor | None:
    """Compare the tensor that the program's unpack hook returned with the save. `began` is the moment when it began.

    Returns the saved tensor where its bytes were kept and the hook returned other ones; else None.
    """
    if packed.spare is not None and (old := _spared(packed, packed.spare, tensor)) is not None:
        return old
    if context.bus.listeners:
        _compare(context, packed, tensor, began)
    return None


def _spared(packed: UserSave, spare: Handle, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what was saved, where bytes are preserved and the program's hooks give back other bytes: a copy, or the
    old memory of a tensor that was given other memory. None where the tensor is right."""
    if spare.kept is not None:
        return spare.kept if geometry(tensor) == packed.where else None
    moved = tensor is packed.tensor() and storages.storage_key(tensor) != packed.key
    return spare.alias if moved and same(packed.digest, fingerprint(spare.alias)) else None


def _kept(context: Context, tensor: torch.Tensor, value: object, place: Place | None) -> UserSave | None:
    """Return the record of a save; None for a tensor that has no storage or no version."""
    key = storages.storage_key(tensor)
    if key is None or tensor_state.version_of(tensor) is None:
        context.bus.not_seen("saves under the program's own saved-tensor hooks that have no storage or version")
        return None
    kept = UserSave(key, tensor, where=geometry(tensor))
    kept.value, kept.place, kept.node = value, place, engine_state.next_node() - 1
    kept.moment, kept.filled_last = moment(), False
    found = read_by(None, [value], states=False)
    tensors = [*found.given, *found.tensors]
    kept.in_sight, kept.spare = bool(tensors), None
    kept.packed = [packed for part in tensors if (packed := _packed(context, kept, tensor, part)) is not None]
    kept.is_copy = bool(tensors) and all(storages.storage_key(part) != key for part in tensors)
    if not kept.is_copy:
        context.memory.read_again_by(kept, (key,))
        if context.contents is not None:
            kept.digest = fingerprint(tensor)
            context.contents.unread += kept.digest is None
    if type(kept.digest) is int and not tensors:
        context.state(_Elsewhere).note(kept.digest, kept.moment)
    if not kept.is_copy and tensors:
        kept.spare = policy.spare(context, tensor, kept.node, place, kept.digest)
    context.thread.packed.append(ref(kept))
    context.thread.saves.append((kept.node, place))
    return kept


def _packed(context: Context, kept: UserSave, tensor: torch.Tensor, part: torch.Tensor) -> _Packed | None:
    """Return what is known of a tensor that the pack hook returned; None if it lies on the memory of the saved one."""
    key = storages.storage_key(part)
    if key is None or key == kept.key or tensor_state.version_of(part) is None:
        return None
    packed = _Packed(key, part, where=geometry(part))
    packed.original = None
    context.memory.read_again_by(packed, (key,))
    if context.contents is not None and part.device == tensor.device:
        packed.digest = fingerprint(part)
        if (part.shape, part.dtype) == (tensor.shape, tensor.dtype) and stored_like(part) == stored_like(tensor):
            packed.original = fingerprint(tensor)
    packed.spare = policy.spare(context, part, kept.node, kept.place, packed.digest)
    return packed


def _looked_at(context: Context, kept: UserSave) -> tuple[object, Sequence[_Change]]:
    """Return what the program's unpack hook is to get, and what has changed in it.

    Where bytes are preserved, it gets the copies. Raises ClobberError if they cannot be put into what the program's
    pack hook returned.
    """
    copies: dict[int, torch.Tensor] = {}
    changed: list[_Change] = []
    for packed in kept.packed:
        tensor = packed.still()
        if packed.spare is not None and (copy := packed.spare.kept) is not None:
            if (held := packed.tensor()) is not None:
                copies[id(held)] = copy
        elif tensor is not None and context.bus.listeners:
            digest = None if packed.digest is None else fingerprint(tensor)
            moved = tensor._version != packed.version
            if moved if digest is None else not (isinstance(digest, int) and digest == packed.digest):
                changed.append((packed, tensor, digest))
    if not copies:
        return kept.value, changed
    value = _with(kept.value, copies)
    if copies:
        raise ClobberError(CHANGED_INSIDE)
    return value, changed


def _with(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    """Return a value with copies in place of tensors, also in tuples, lists and dicts; take these off `copies`."""
    if isinstance(value, torch.Tensor):
        return copies.pop(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_with(one, copies) for one in value)
    if isinstance(value, tuple) and (make := getattr(value, "_make", None)) is not None:  # a named tuple
        return make(_with(one, copies) for one in value)
    if isinstance(value, dict):
        return {name: _with(one, copies) for name, one in value.items()}
    return value


def _tell(context: Context, kept: UserSave, changed: Sequence[_Change], result: object) -> None:
    """Report the memory of a pack hook that changed before the read. `result` is what the unpack hook made of it.

    A result with the bytes of the saved tensor is right, whatever the hooks did in between. Raises ClobberError where
    noclobber stops writes or preserves bytes.
    """
    node, call = engine_state.current_node(), here()
    if not clobbers.is_read(kept, node):
        return
    found: list[Clobber] = []
    for packed, tensor, digest in changed:
        given = None
        if isinstance(result, torch.Tensor) and packed.original is not None:
            given = fingerprint(result)
        later = isinstance(digest, OnDevice) and call is not None
        if not later and same(packed.original, given):
            continue
        other: torch.Tensor | bool | None = None
        if later:
            with modes.aside():
                other = differs(digest, packed.digest) & differs(given, packed.original)
        found += _found(context, kept, packed, tensor, node, tensor._version, digest, other)
    policy.report(context, found)


def _compare(context: Context, kept: UserSave, tensor: torch.Tensor, began: int) -> None:
    """Report a clobber if the program's hooks give back the same memory that was saved and its bytes have changed.

    Other bytes in other memory are no clobber: hooks may quantise, compress or round. Raises ClobberError where
    noclobber stops writes or preserves bytes.
    """
    if kept.is_copy:
        return
    original, moved = kept.tensor(), not kept.is_below(tensor)
    if tensor is not original and (moved or geometry(tensor) != kept.where):
        if not kept.in_sight:
            _compare_elsewhere(context, kept, tensor, began)
        return
    node = engine_state.current_node()
    digest = None if kept.digest is None else fingerprint(tensor)
    current = max(kept.version, *(tensor_state.version_of(one) or 0 for one in (tensor, original) if one is not None))
    what = change(kept.digest, digest, moved=moved or current != kept.version, waits=here() is None)
    other: torch.Tensor | bool | None = None
    if what is Change.LATER and clobbers.is_read(kept, node):
        other = clobbers.is_other_later(node, clobbers.field_of(kept, node), digest, kept.digest)
    elif what in (Change.NO, Change.LATER) or not clobbers.is_other(kept, node, tensor, kept.digest):
        return
    policy.report(context, _found(context, kept, kept, tensor, node, current, digest, other))


class _Elsewhere:
    """The fingerprints of tensors that the program's hooks keep elsewhere, each with the moment when the newest tensor
    with these bytes was saved."""

    def __init__(self, _: Context) -> None:
        self._saved: OrderedDict[int, int] = OrderedDict()

    def note(self, digest: int, moment: int) -> None:
        self._saved[digest] = moment
        self._saved.move_to_end(digest)
        if len(self._saved) > _MOST_ELSEWHERE:
            self._saved.popitem(last=False)

    def was_saved_after(self, digest: Digest, moment: int) -> bool:
        return isinstance(digest, int) and self._saved.get(digest, moment) > moment


def _compare_elsewhere(context: Context, kept: UserSave, tensor: torch.Tensor, began: int) -> None:
    """Report memory of a pool that has been given to a later save: the unpack hook gives back the bytes of that save,
    and the memory was written between the two hooks. Other bytes say nothing: hooks may quantise, compress or round."""
    context.bus.not_seen("saves that the program's own saved-tensor hooks keep elsewhere")
    node, key = engine_state.current_node(), storages.storage_key(tensor)
    if key is None or kept.digest is None or not clobbers.is_read(kept, node):
        return
    now, later = fingerprint(tensor), context.state(_Elsewhere)
    if not _is_stored_alike(kept.where, geometry(tensor)) or same(kept.digest, now):
        return
    between = write_history.since(context.memory, kept.moment, began + 1)
    written = [one for one in between if one.key == key and one.version is not None]
    if written and later.was_saved_after(now, kept.moment):
        read = Witness(key, tensor, kept.digest, geometry(tensor))
        read.version = written[0].version or 0
        found = _found(context, kept, read, tensor, node, tensor._version, now, None)
        policy.report(context, [one for one in found if any(write.op and write.overlaps for write in one.writes)])


def _is_stored_alike(one: Geometry | None, other: Geometry) -> bool:
    """Return True if the fingerprints of two tensors can be compared: they have one shape, type and order."""
    if one is None or one[2] is None or other[2] is None or (one[1], one[3]) != (other[1], other[3]):
        return False
    return order(one[1], one[2]) == order(other[1], other[2])


def _found(
    context: Context,
    kept: UserSave,
    read: Witness,
    tensor: torch.Tensor,
    node: Node | None,
    current: int,
    digest: Digest,
    other: torch.Tensor | bool | None,
) -> list[Clobber]:
    """Return the clobber of the memory in `read`, whose fingerprint is `digest` now; none if no write is known and no
    bytes are. Where `other` will tell whether they differ, that is left to the end of the call."""
    described = partial(clobbers.tensor_of, tensor) if other is None else clobbers.later_of(tensor)
    backward, is_compared, version = reading(), read.digest is not None, read.version
    field, name = clobbers.field_of(kept, node), node.name() if node is not None else ""
    how: Literal["hooks", "packed"] = "hooks" if read is kept else "packed"
    entries = write_history.entries_of(read, write_history.since(context.memory, kept.moment), current)
    is_output, place = how == "hooks" and graph.output_of(node, field) is not None, site_of(kept.place)

    def make_clobber() -> Clobber:
        known = described()
        save = Save(name, field, known, version, place, is_output, unchecked=how)
        writes = clobbers.writes_of(entries, current, known)
        if not any(write.overlaps for write in writes):
            writes = (Write("", via="foreign"),) if is_compared or not writes else writes
        return Clobber(save, writes, clobbers.read_of(backward, name), current)

    if other is not None and (call := here()) is not None:
        call.later.append(clobbers.Later(other, make_clobber))
        return []
    clobber = make_clobber()
    return [clobber] if digest is not None or any(write.overlaps for write in clobber.writes) else []
