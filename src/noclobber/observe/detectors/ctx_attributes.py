"""Tensors that a custom Function keeps as attributes of its ctx: PyTorch never compares their version, so this does."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet, ref

import torch

from noclobber.model.clobber import Clobber
from noclobber.model.error import ClobberError
from noclobber.observe.core import custom_backwards, save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.custom_backwards import CustomBackwards
from noclobber.observe.core.custom_forwards import ForwardCall
from noclobber.observe.core.fingerprints import OnDevice, fingerprint, same
from noclobber.observe.core.records import latest, reading
from noclobber.observe.core.save_hooks import Handle, Suspect
from noclobber.observe.core.sites import Place
from noclobber.observe.describe import clobbers, torch_messages
from noclobber.observe.describe.clobbers import Later
from noclobber.observe.torch_api import native_saves, private

UNCONNECTED = (
    "what a custom Function returned and keeps on its ctx was overwritten; its bytes are kept, but create_graph needs "
    "its place in the graph as well: keep it with ctx.save_for_backward"
)


class CtxSave(Handle):
    """A tensor on a ctx, as it was when forward had ended. It refers weakly to its own alias.

    The tensor is looked up on the ctx when asked for: a weak reference to it would keep `swap_tensors` from working.
    `identity` is its `id`, which helps to tell whether it is the same object still.
    """

    __slots__ = ("applied", "connected", "ctx", "field", "identity", "in_graph", "key", "name")
    unchecked: Literal["", "hooks", "ctx"] = "ctx"
    follows = True

    ctx: ref[Any]
    identity: int
    name: str
    key: Any
    """Where in the list, tuple or dict; None for a tensor that is itself the attribute."""
    in_graph: bool
    """Whether it can be differentiated."""
    connected: Any
    """PyTorch's own save of it, where bytes are preserved: gives the old bytes at the old place in the graph. None for
    what the Function returned itself, as that would keep its node alive for good."""

    def tensor(self) -> torch.Tensor | None:
        """What the ctx holds there now."""
        ctx = self.ctx()
        return None if ctx is None else dict(_parts(_attributes(ctx).get(self.name))).get(self.key)


def _attributes(ctx: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = object.__getattribute__(ctx, "__dict__")
    return attributes


def _parts(value: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield None, value
    elif isinstance(value, (list, tuple, dict)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(one, torch.Tensor):
                yield key, one


def arm(context: Context, way: Way) -> None:
    """Compare what custom Functions keep as attributes of their ctx."""
    stashes = CtxSaves(context, way)

    def begin(call: ForwardCall, args: tuple[Any, ...]) -> Callable[[bool], None]:
        def ended(returned: bool) -> None:
            if returned and call.kept and call.ctx is not None:
                stashes.take(call.ctx, call.function, call.kept, call.applied)

        return ended

    context.forwards.watch(way, begin, stashes.forget)
    context.customs.watch(way, stashes.begins)


class CtxSaves:
    """The stashes of every ctx alive. The table is weak: a stash lives as long as its ctx, or until it is unset."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self.way = context, way
        self._held: WeakKeyDictionary[Any, list[CtxSave]] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[type, frozenset[str] | None] = WeakKeyDictionary()
        self._by_themselves: WeakSet[Any] = WeakSet()

    def take(self, ctx: Any, function: type, kept: dict[str, Place | None], applied: Place | None) -> None:
        """A forward has ended that was `applied` there; what it wrote to its own stash until now is part of it."""
        if not torch.is_grad_enabled() or not any(ctx.needs_input_grad):
            return
        if function not in self._read:
            self._read[function] = attributes_read(function)
        read, live, made = self._read[function], self._context.live, []
        for name, place in kept.items():
            if read is None or name in read:
                for key, tensor in _parts(_attributes(ctx).get(name)):
                    stash = self._stash(ctx, name, key, tensor, place)
                    if stash is not None:
                        stash.applied = applied
                        made.append(stash)
                        live.unsorted.append(ref(stash))
        if made:
            self._held[ctx] = made
            if self._context.keeping:
                self._keep_comparing(ctx)
            if len(live.unsorted) > live.limit:
                live.sweep()

    def _stash(self, ctx: Any, name: str, key: Any, tensor: torch.Tensor, place: Place | None) -> CtxSave | None:
        alias = save_hooks.alias_of(tensor)
        version = private.version_of(alias)
        if version is None or private.storage_key(alias) is None:
            return None
        stash = CtxSave(alias)
        stash.alias, stash.version, stash.place = alias, version, place
        stash.ctx, stash.name, stash.key, stash.node = ref(ctx), name, key, ctx._sequence_nr()
        stash.identity, stash.moment = id(tensor), latest[0]
        stash.field = f"ctx.{name}" if key is None else f"ctx.{name}[{key!r}]"
        contents = self._context.contents
        stash.digest = None if contents is None else contents.at_save(alias)
        stash.in_graph, stash.connected = tensor.requires_grad, None
        if self._context.keeping and tensor.requires_grad and torch_messages.made_by(tensor, ctx) is False:
            stash.connected = native_saves.make(tensor)
        return stash

    def _keep_comparing(self, ctx: Any) -> None:
        """Its backward gets what was kept also once the block has ended."""
        weak, customs = ref(ctx), CustomBackwards()
        customs.watch(self.way, partial(backward_begins, self._context, self), for_good=True)
        self._by_themselves.add(ctx)
        for name in custom_backwards.natives():
            _attributes(ctx)[name] = custom_backwards.of_node(self.way, weak, name, customs)

    def begins(self, ctx: Any, args: tuple[Any, ...]) -> Callable[..., None] | None:
        """A backward is about to run: as `backward_begins`, unless its node sees to that itself."""
        return None if ctx in self._by_themselves else backward_begins(self._context, self, ctx, args)

    def forget(self, ctx: Any, name: str) -> None:
        """An attribute is set anew or deleted once forward has ended: its bytes may go, and the new ones are meant."""
        held = self._held.get(ctx)
        if held:
            held[:] = [stash for stash in held if stash.name != name]

    def of(self, ctx: Any) -> list[CtxSave]:
        """The stashes of a ctx."""
        return self._held.get(ctx, [])

    def changed(self, ctx: Any) -> list[tuple[CtxSave, Clobber | Later]]:
        """Those whose bytes are not what they were, with what there is to say if they are read; on a device, all."""
        context, found = self._context, list[tuple[CtxSave, Clobber | Later]]()
        backward = reading()
        for stash in self.of(ctx):
            value = stash.tensor()
            elsewhere = value is not None and _is_elsewhere(stash, value)
            if value is None or (elsewhere and not _is_the_same(stash, value)):
                continue  # another tensor was put in its place
            if _kept(stash) is not None:
                continue
            elsewhere &= not _is_spared(stash)  # as it gets the old memory then
            moved = stash.alias._version != save_hooks.version_at_save(stash)
            if stash.digest is not None:
                digest = fingerprint(value if elsewhere else stash.alias)
                if isinstance(digest, OnDevice) and backward.call != "access":
                    found.append((stash, clobbers.later(stash, ctx, digest, backward, context.memory)))
                    continue
                if same(digest, stash.digest) and (context.contents is not None or not moved):
                    continue
            elif not moved:
                continue
            # PyTorch says nothing of these, however far the version moved.
            clobber = replace(clobbers.clobber_of(stash, ctx, backward, context.memory), message=None)
            if context.contents is not None or any(write.overlaps for write in clobber.writes):
                found.append((stash, clobber))
        return found

    def renew(self, ctx: Any, before: list[tuple[int, Any]]) -> None:
        """A backward has run: what it wrote to its own stash is meant for the next one, and what it dropped may go."""
        held = self.of(ctx)
        if len(before) == len(held):
            for stash, was in zip(held, before, strict=True):
                if was != _state(stash):
                    stash.version = int(stash.alias._version)
                    stash.digest = None if stash.digest is None else fingerprint(stash.alias)
        held[:] = [stash for stash in held if stash.tensor() is not None]


def _state(stash: CtxSave) -> tuple[int, Any]:
    suspect = stash.version
    return int(stash.alias._version), len(suspect.writes) if isinstance(suspect, Suspect) else 0


def backward_begins(context: Context, kept: CtxSaves, ctx: Any, args: tuple[Any, ...]) -> Callable[..., None] | None:
    """A backward is about to run that may read stashes: compare them now, and tell once it reads what was changed."""
    held = kept.of(ctx)
    if not held:
        return None
    changed, before = kept.changed(ctx) if context.bus.listeners else [], [_state(stash) for stash in held]
    with ExitStack() as stack:
        stack.callback(kept.renew, ctx, before)
        stack.enter_context(_given_what_was_kept(ctx, held))
        if changed:
            read = kept.way.entry(lambda name: _tell(context, held, changed, name))
            stack.enter_context(_reads(ctx, read))
        leave = stack.pop_all().close
    return lambda _: leave()


@contextmanager
def _given_what_was_kept(ctx: Any, held: list[CtxSave]) -> Iterator[None]:
    """Where bytes are preserved, give a backward the copy of a stash that was overwritten. What it writes into that
    itself is meant for its next run. Raises ClobberError where the stash may be differentiated and can't be."""
    attributes, values = _attributes(ctx), dict[str, Any]()
    given: list[tuple[CtxSave, torch.Tensor, int]] = []
    for stash in held:
        if (tensor := _old(stash)) is not None:
            values.setdefault(stash.name, attributes[stash.name])
            attributes[stash.name] = _replaced(attributes[stash.name], stash.key, tensor)
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
    """What a backward is to get instead of the tensor on the ctx: a copy, or the old memory of what was given other."""
    value = stash.tensor()
    if value is None or not isinstance(stash.version, Suspect):
        return None
    if not _is_elsewhere(stash, value) or not _is_the_same(stash, value):
        return None
    if _kept(stash) is None and not _is_spared(stash):
        return None
    if not stash.in_graph or not torch.is_grad_enabled():
        return stash.alias
    if stash.connected is None:
        raise ClobberError(UNCONNECTED)
    old: torch.Tensor = stash.connected.unpack()
    return old


def _kept(stash: CtxSave) -> torch.Tensor | None:
    return stash.version.kept if isinstance(stash.version, Suspect) else None


def _is_spared(stash: CtxSave) -> bool:
    return isinstance(stash.version, Suspect) and stash.version.spared


def _is_elsewhere(stash: CtxSave, value: torch.Tensor) -> bool:
    """Whether the tensor on the ctx lies on other memory than when forward had ended."""
    return private.storage_key(value) != private.storage_key(stash.alias)


def _is_the_same(stash: CtxSave, value: torch.Tensor) -> bool:
    """Whether a tensor that lies elsewhere than the stash's alias is what was kept: it was seen to be given that other
    memory, or to be written there and a copy made. Its `id` alone says nothing, as it may have been used again."""
    suspect, version = stash.version, stash.alias._version
    if id(value) != stash.identity:
        return False
    if save_hooks.version_at_save(stash) != version == private.version_of(value):
        return True  # they share a counter, and `set_` counts
    key, writes = private.storage_key(value), suspect.writes if isinstance(suspect, Suspect) else ()
    return any(noted.written.only_moves or noted.key == key for noted, _ in writes)


def _replaced(value: Any, key: Any, tensor: torch.Tensor) -> Any:
    """A stash with one of its tensors exchanged."""
    if key is None:
        return tensor
    if isinstance(value, dict):
        return value | {key: tensor}
    return type(value)(tensor if index == key else one for index, one in enumerate(value))


def _tell(context: Context, held: list[CtxSave], changed: list[tuple[CtxSave, Clobber | Later]], name: str) -> None:
    """An attribute is read. Raises where writes are to be stopped and this one could not be."""
    asked = [one for one in changed if name in (one[0].name, "__dict__")]
    for one in asked:
        changed.remove(one)
    # Backward may have set it anew before it reads it.
    read = [one for stash, one in asked if stash in held]
    reading().later += [one for one in read if isinstance(one, Later)]
    found = [one for one in read if isinstance(one, Clobber)]
    stopped = ClobberError(clobbers.CHANGED) if context.strict and found else None
    context.bus.tell(found, stopped)
    if stopped is not None:
        raise stopped


@contextmanager
def _reads(ctx: Any, read: Callable[[str], object]) -> Iterator[None]:
    """Call `read` with the name of each attribute that is asked of a ctx. Dear, so only where a stash has changed."""
    owner: Any = type(ctx)

    def __getattribute__(self: Any, name: str) -> Any:
        if self is ctx:
            read(name)
        return object.__getattribute__(self, name)

    owner.__getattribute__ = __getattribute__
    try:
        yield
    finally:
        if vars(owner).get("__getattribute__") is __getattribute__:
            del owner.__getattribute__


def attributes_read(function: Any) -> frozenset[str] | None:
    """The attributes of its ctx that a Function's backward can read; None where the ctx goes anywhere else."""
    names: set[str] = set()
    for method in {function.backward, function.vjp}:
        code = getattr(inspect.unwrap(method), "__code__", None)
        if code is None or not code.co_argcount:
            return None
        ctx = code.co_varnames[0]
        for one, following in pairwise(dis.get_instructions(code)):
            if one.argval == ctx and one.opname.startswith("LOAD_FAST") and following.opname in _OF_CTX:
                names.add(following.argval)
            elif one.argval == ctx or (isinstance(one.argval, tuple) and ctx in one.argval):
                return None
    return None if "__dict__" in names else frozenset(names)


_OF_CTX = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
