"""Tensors that a custom Function keeps as attributes of its ctx. PyTorch never checks their version; this file does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.autograd.graph import Node

from noclobber.model.reports.error import ClobberError
from noclobber.model.seen.clobber import Clobber
from noclobber.observe import policy
from noclobber.observe.core import calls
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import ALWAYS, KEPT, CustomBackwards, ForwardCall
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import handles
from noclobber.observe.core.seen.handles import Handle, alias_of
from noclobber.observe.core.seen.records import Record, reading
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.describe import clobbers, torch_messages
from noclobber.observe.describe.clobbers import Later
from noclobber.observe.torch_api.autograd import native_saves
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import fingerprint
from noclobber.observe.witness.witness import Change, change

Path = tuple[object, ...]
_DEEPEST = 3
UNCONNECTED = (
    "what a custom Function returned and keeps on its ctx was overwritten; its bytes are kept, but create_graph needs "
    "its place in the graph as well: keep it with ctx.save_for_backward"
)


class CtxSave(Handle):
    """A stash: a tensor on a ctx, as it was when forward ended. It refers weakly to its own alias.

    The tensor is looked up on the ctx when it is needed, because a weak reference to it would make `swap_tensors` fail.
    `identity` is the tensor's `id`. It helps to tell whether the ctx still holds the same object.
    """

    __slots__ = ("alone", "applied", "computed", "connected", "ctx", "field", "identity", "in_graph", "name", "path")
    unchecked: Literal["", "hooks", "ctx", "policy"] = "ctx"
    follows = True

    ctx: ref[Node]
    identity: int
    name: str
    path: Path
    """The indexes or keys in containers. Empty where the attribute itself is the tensor."""
    alone: bool
    """True if nothing but the attribute held the tensor when forward had ended."""
    computed: Place | None
    """Where the last backward computed in its memory."""
    in_graph: bool
    """True if the tensor required a gradient when forward ended."""
    connected: native_saves.Save | None
    """PyTorch's own save of the tensor, made where bytes are preserved. It gives the old bytes at the old place in the
    graph. None for a result of the Function: a save of that would keep the Function's node alive forever."""

    def tensor(self) -> torch.Tensor | None:
        """Return the tensor that the ctx holds in this place now; None if there is none."""
        ctx = self.ctx()
        return None if ctx is None else dict(_parts(_attributes(ctx).get(self.name))).get(self.path)


def _attributes(ctx: object) -> dict[str, object]:
    attributes: dict[str, object] = object.__getattribute__(ctx, "__dict__")
    return attributes


def _parts(value: object, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the tensors of an attribute, each with its path in containers, as far down as _DEEPEST."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, KEPT) and len(path) < _DEEPEST:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, KEPT):
                yield from _parts(part, (*path, key))


def arm(context: Context, way: Way) -> None:
    """Compare the tensors that custom Functions keep as attributes of their ctx."""
    stashes = CtxSaves(context, way)
    way.add(context.forwards.takes, way.entry(stashes.take))
    way.add(context.forwards.forgets, way.entry(stashes.forget))
    way.before(torch.UntypedStorage, "resize_", stashes.given_up)
    context.customs.watch(way, stashes.begins)


class CtxSaves:
    """The stashes of all live ctx objects. The table is weak: a stash lives until its ctx dies or its attribute is
    set again or deleted."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self.way = context, way
        self._held: WeakKeyDictionary[Node, list[CtxSave]] = WeakKeyDictionary()
        self._by_themselves: WeakSet[Node] = WeakSet()
        """Nodes that compare their stashes themselves (`_keep_comparing`)."""

    def take(self, call: ForwardCall, returned: bool) -> None:
        """Record the stashes of a forward that has ended.

        Writes that forward itself made to a stash are part of what it kept, not clobbers.
        """
        ctx: Any = call.ctx
        if not (returned and torch.is_grad_enabled() and any(ctx.needs_input_grad)):
            return
        made: list[CtxSave] = []
        for name, place in call.kept.items():
            alone = _is_alone(_attributes(ctx), name)
            for path, tensor in _parts(_attributes(ctx).get(name)):
                stash = self._stash(ctx, name, path, tensor, place)
                if stash is not None:
                    stash.applied = made[0].applied if made else caller()
                    stash.alone = alone
                    made.append(stash)
                    self._context.live.add(stash)
        if made:
            self._held[ctx] = made
            if self._context.keeping:
                self._keep_comparing(ctx)

    def _stash(self, ctx: Node, name: str, path: Path, tensor: torch.Tensor, place: Place | None) -> CtxSave | None:
        """Return the stash of one tensor; None for a tensor that has no version or no storage."""
        alias, contents = alias_of(tensor), self._context.contents
        if tensor_state.version_of(alias) is None or storages.storage_key(alias) is None:
            return None
        digest = None if contents is None else contents.at_save(alias)
        stash = handles.made(CtxSave, alias, alias, ctx._sequence_nr(), place, digest)
        stash.ctx, stash.name, stash.path, stash.identity = ref(ctx), name, path, id(tensor)
        stash.alone, stash.computed = False, None
        stash.field = f"ctx.{name}" + "".join(f"[{key!r}]" for key in path)
        stash.in_graph, stash.connected = tensor.requires_grad, None
        if self._context.keeping and tensor.requires_grad and torch_messages.made_by(tensor, ctx) is False:
            stash.connected = native_saves.connected(tensor)
        return stash

    def _keep_comparing(self, ctx: Node) -> None:
        """Let the node itself call `compare`, so that its backward gets the kept bytes even after the
        preserving block has ended."""
        weak, customs = ref(ctx), CustomBackwards(None)
        customs.them.append((self.way, self.compare, ALWAYS))
        self._by_themselves.add(ctx)
        for name in calls.natives():
            _attributes(ctx)[name] = calls.of_node(self.way, weak, name, customs)

    def begins(self, ctx: Node, args: tuple[object, ...]) -> Callable[[object], None] | None:
        """Call `compare` for a backward that is about to run, unless the node calls it itself."""
        return None if ctx in self._by_themselves else self.compare(ctx, args)

    def compare(self, ctx: Node, _: tuple[object, ...]) -> Callable[[object], None] | None:
        """Compare the stashes of a backward that is about to run, and report a changed one when the backward reads it.

        Returns what to call when the backward has ended; None where the ctx has no stashes.
        """
        held = self._held.get(ctx, [])
        if not held:
            return None
        changed = self.changed(ctx) if self._context.bus.listeners else []
        before = [_state(stash) for stash in held]
        with ExitStack() as stack:
            stack.callback(self.renew, ctx, before)
            stack.enter_context(_given_what_was_kept(ctx, held))
            if changed:
                read = self.way.entry(lambda name: _tell(self._context, held, changed, name))
                stack.enter_context(_reads(ctx, read))
            leave = stack.pop_all().close
        return lambda _: leave()

    def forget(self, ctx: Node, name: str) -> None:
        """Drop the stashes of an attribute that is set again or deleted after forward. The program means the new value,
        so nobody needs the old bytes."""
        held = self._held.get(ctx)
        if held:
            held[:] = [stash for stash in held if stash.name != name]

    def given_up(self, storage: torch.UntypedStorage, *_: object) -> None:
        """Drop the stashes on a storage that the program resizes: it frees their memory, and gives them other memory
        with what it has computed again, which is equal up to rounding (reversible blocks, as those of memcnn)."""
        there = self._context.live.at(storages.key_of(storage)) if self._held else []
        for stash in [one for one in there if isinstance(one, CtxSave)]:
            held = [] if (ctx := stash.ctx()) is None else self._held.get(ctx, [])
            if stash in held:
                held.remove(stash)
                self._context.bus.not_seen("tensors on the `ctx` of a Function whose memory the program frees")

    def changed(self, ctx: Node) -> list[tuple[CtxSave, Clobber | Later]]:
        """Return the stashes whose bytes have changed, each with the clobber to report if backward reads it.

        Bytes on a device are compared only when the call ends, so each stash on a device is returned, with a `Later`.
        """
        context = self._context
        found: list[tuple[CtxSave, Clobber | Later]] = []
        backward = reading()
        for stash in self._held.get(ctx, []):
            value = stash.tensor()
            elsewhere = value is not None and _is_elsewhere(stash, value)
            if value is None or (elsewhere and not _is_the_same(stash, value)):
                continue  # the program put another tensor in its place
            if stash.kept is not None:
                continue
            elsewhere &= not _is_spared(stash)  # a spared stash gets its old memory back (`_old`)
            moved = stash.alias._version != stash.version
            digest = None if stash.digest is None else fingerprint(value if elsewhere else stash.alias)
            what = change(stash.digest, digest, moved=moved, waits=backward.call == "access")
            if what is Change.LATER:
                found.append((stash, clobbers.later(stash, ctx, digest, backward, context.memory)))
                continue
            if what is Change.NO and (context.contents is not None or not moved):
                continue
            # PyTorch raises nothing for a stash, even if its version moved.
            clobber = replace(clobbers.clobber_of(stash, ctx, backward, context.memory), message=None)
            if context.contents is not None or any(write.overlaps for write in clobber.writes):
                found.append((stash, clobber))
        return found

    def renew(self, ctx: Node, before: list[tuple[int, int]]) -> None:
        """Update the stashes after a backward. `before` is the `_state` of each when that backward began.

        What the backward wrote into its own stash is meant for the next backward. A stash that it dropped is forgotten.
        """
        held = self._held.get(ctx, [])
        if len(before) == len(held):
            for stash, was in zip(held, before, strict=True):
                if was != _state(stash):
                    writes = stash.writes[was[1] :]
                    digest = stash.digest if stash.kept is None and isinstance(stash.digest, int) else None
                    if digest is None or fingerprint(stash.alias) != digest:
                        self._note_computed(ctx, stash, writes)
                    for one in (stash, *self._beside(stash, writes, was[0])):
                        one.version, one.suspect = int(one.alias._version), None
                        one.digest = None if one.digest is None else fingerprint(one.alias)
        held[:] = [stash for stash in held if stash.tensor() is not None]

    def _beside(self, stash: CtxSave, writes: list[tuple[Record, int]], version: int) -> list[CtxSave]:
        """Return the stashes of other nodes that hold the same tensor as a backward found it, at this version, where it
        wrote a state there: what it counts or averages is meant for their backwards, too."""
        key = storages.storage_key(stash.alias)
        if key is None or all(noted.written.op in _COMPUTING for noted, _ in writes):
            return []
        others = (one for one in self._context.live.at(key) if isinstance(one, CtxSave) and one is not stash)
        return [one for one in others if one.identity == stash.identity and one.version == version]

    def _note_computed(self, ctx: Node, stash: CtxSave, writes: list[tuple[Record, int]]) -> None:
        """Report a backward that computes in the memory of what forward computed for it, and does so again when it runs
        again: it then begins from what it has left there. Nobody else holds that memory.

        Raises ClobberError where noclobber stops writes or preserves bytes.
        """
        ops = [noted.written.op for noted, _ in writes]
        place = writes[0][0].place if stash.alone and ops and all(one in _COMPUTING for one in ops) else None
        again, stash.computed = place is not None and place == stash.computed, place
        if again:
            clobber = clobbers.clobber_of(stash, ctx, reading(), self._context.memory)
            policy.report(self._context, [replace(clobber, message=None)])


_COMPUTING = tuple(
    f"aten::{name}_"
    for name in ("mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos", "sigmoid")
)
"""Operators that leave what depends on the numbers before, and again when they run again. Additions are state."""


def _references(attributes: dict[str, object], name: str) -> int:
    return sys.getrefcount(attributes.get(name))


def _is_alone(attributes: dict[str, object], name: str) -> bool:
    """Return True if an attribute alone holds a tensor, and that alone its memory."""
    alone = _references(attributes, name) == _ALONE
    return alone and isinstance(held := attributes.get(name), torch.Tensor) and storages.is_only_holder(held)


_ALONE = _references({"x": object()}, "x")
"""The references to what only an attribute holds, in this interpreter."""


def _state(stash: CtxSave) -> tuple[int, int]:
    return int(stash.alias._version), len(stash.writes)


@contextmanager
def _given_what_was_kept(ctx: Node, held: list[CtxSave]) -> Iterator[None]:
    """Put the old bytes of overwritten stashes on the ctx while a backward runs, where bytes are preserved.

    What the backward itself writes into them stays on the ctx for its next run. Raises ClobberError where gradients may
    flow through the stash and its old place in the graph is not known.
    """
    attributes = _attributes(ctx)
    values: dict[str, object] = {}
    given: list[tuple[CtxSave, torch.Tensor, int]] = []
    for stash in held:
        if (tensor := _old(stash)) is not None:
            values.setdefault(stash.name, attributes[stash.name])
            attributes[stash.name] = _replaced(attributes[stash.name], stash.path, tensor)
            given.append((stash, tensor, tensor._version))
    instead = {name: attributes[name] for name in values}
    try:
        yield
    finally:
        written = [stash for stash, tensor, version in given if tensor._version != version]
        held[:] = [stash for stash in held if stash not in written]
        for name, value in values.items():
            if attributes.get(name) is instead[name] and all(stash.name != name for stash in written):
                attributes[name] = value


def _old(stash: CtxSave) -> torch.Tensor | None:
    """Return what backward must get instead of the tensor on the ctx: a copy of its old bytes, or its old memory where
    the tensor was given other memory. None where the tensor on the ctx is right."""
    value = stash.tensor()
    if value is None or stash.suspect is None:
        return None
    if not _is_elsewhere(stash, value) or not _is_the_same(stash, value):
        return None
    if stash.kept is None and not _is_spared(stash):
        return None
    if not stash.in_graph or not torch.is_grad_enabled():
        return stash.alias
    if stash.connected is None:
        raise ClobberError(UNCONNECTED)
    return stash.connected.unpack()


def _is_spared(stash: CtxSave) -> bool:
    return stash.suspect is not None and stash.suspect.spared


def _is_elsewhere(stash: CtxSave, value: torch.Tensor) -> bool:
    return storages.storage_key(value) != storages.storage_key(stash.alias)


def _is_the_same(stash: CtxSave, value: torch.Tensor) -> bool:
    """Return True if `value`, which has other memory than the stash's alias, is the tensor that the Function kept.

    It is if noclobber saw the tensor get that memory, or saw a write to that memory. An equal `id` alone proves
    nothing, because Python reuses ids.
    """
    version = stash.alias._version
    if id(value) != stash.identity:
        return False
    if stash.version != version == tensor_state.version_of(value):
        return True  # they share a version counter, and `set_` moves it
    key = storages.storage_key(value)
    return any(noted.written.only_moves or noted.key == key for noted, _ in stash.writes)


def _replaced(value: Any, path: Path, tensor: torch.Tensor) -> object:
    if not path:
        return tensor
    part = _replaced(value[path[0]], path[1:], tensor)
    if isinstance(value, dict):
        return value | {path[0]: part}
    make = getattr(value, "_make", type(value))  # of a namedtuple
    return make([part if index == path[0] else one for index, one in enumerate(value)])


def _tell(context: Context, held: list[CtxSave], changed: list[tuple[CtxSave, Clobber | Later]], name: str) -> None:
    """Report the changed stashes of an attribute that backward reads.

    Raises ClobberError where noclobber stops writes or preserves bytes and could do neither here.
    """
    asked = [entry for entry in changed if name in (entry[0].name, "__dict__")]
    for entry in asked:
        changed.remove(entry)
    # Backward may have set the attribute again before this read.
    read = [result for stash, result in asked if stash in held]
    reading().later += [result for result in read if isinstance(result, Later)]
    policy.report(context, [result for result in read if isinstance(result, Clobber)])


@contextmanager
def _reads(ctx: Any, read: Callable[[str], object]) -> Iterator[None]:
    """Call `read` with the name of each attribute that is read from a ctx, which gets a class of its own for that.

    This is slow, so it is used only where a stash has changed.
    """
    own: Any = type(ctx)

    def __getattribute__(self: object, name: str) -> object:
        read(name)
        return object.__getattribute__(self, name)

    reading: Any = type(own)(own.__name__, (own,), {"__slots__": (), "__getattribute__": __getattribute__})
    reading.__module__, reading.__qualname__ = own.__module__, own.__qualname__
    object.__setattr__(ctx, "__class__", reading)
    try:
        yield
    finally:
        if type(ctx) is reading:
            object.__setattr__(ctx, "__class__", own)
