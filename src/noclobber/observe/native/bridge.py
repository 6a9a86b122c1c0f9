"""Connects the native part to core/: what it asks of Python, and what Python asks of it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import ref

import torch

from noclobber.model.forks import at_fork
from noclobber.model.seen.live_saves import LiveSaves
from noclobber.observe.core.boundary import lost
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import handles, reads, records, sites
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.hot_path import HotPath, Looks
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.core.seen.written import Written
from noclobber.observe.core.writes import kernel_functions, write_kernels
from noclobber.observe.native.load import NotNative, load
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.dispatch import modes, spare_key
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness import digests, layout
from noclobber.observe.witness.digests import Digest, fingerprint

_CLASSES: tuple[type[Handle], ...] = (
    Handle,
    handles.OfView,
    handles.OfMadeAside,
    handles.OfOneOfSeveral,
)
"""By the number of `ViewKind` in live_saves.h."""


class Bridge(HotPath):
    """A native part that is connected to a context. It stays so for the life of the process (core/seen/hot_path.py)."""

    def __init__(self, native: ModuleType, context: Context) -> None:
        self._context = context
        self._moments = ctypes.c_int64.from_buffer(records.latest)  # not to be moved: the native part has its address
        asked = SimpleNamespace(
            kind_of=self._guarded(_kind_of),
            place_here=self._guarded(lambda: sites.place_of(sys._getframe(1))),
            identity=sites.identity,
            make_handle=self._handle,
            has_saves=self._guarded(partial(_is_alive, context.live)),
            failed=self._guarded(partial(_failed, context)),
            make_call=partial(Backward, None, (), "backward", quiet=True),
            program_has_hooks=hook_stack.program_has_hooks,
            accumulated=context.memory.accumulated.append,
            context=context,
            thread=context.thread,
            watchers=context.calls.them,
            call_key=engine_state.CALL,
        )
        native.connect(asked, ctypes.addressof(self._moments))
        super().__init__(native, asked)
        self.fingerprint: Callable[[torch.Tensor], int | None] = native.fingerprint
        self.storage_key: Callable[[torch.Tensor], int | None] = native.storage_key
        self.storage_ref: Callable[[torch.Tensor], storages.StorageRef | None] = native.storage_ref
        records.following = native.next_moment
        reads.walk_with(partial(native.walk, reads.KINDS))
        # In a forked child forked_children.py must see every write, and the native part holds its own locks while this
        # process forks: Python takes everything there.
        native.end()
        at_fork(after_in_child=native.end)

    def _guarded(self, function: Callable[..., object]) -> Callable[..., object]:
        def asked(*args: object) -> object:
            return self._context.core.guarded(function, *args)

        return asked

    def enroll(self, name: str, written: Written | str) -> None:
        """Take the calls of an overload that writes, that returns several views (`written` is its name then), or that
        is recurrent ("")."""
        base, _, overload = name.partition(".")
        if isinstance(written, str):
            self._native.enroll_passing(base, overload, written)
            return
        positions = [position for position, _ in written.arguments]
        flag = -1 if written.flag is None else written.flag
        kinds = (
            written.uncounted,
            written.moves_no_version,
            written.detaches,
            written.resizes,
            written.is_statistics,
        )
        self._native.enroll_write(base, overload, written, positions, flag, *kinds)

    def begin(self, *, watching: bool, attentive: Looks) -> None:
        """Begin to take writes, and saves if `watching`. `attentive` says which writes Python wants to see."""
        native, live, memory = self._native, self._context.live, self._context.memory
        live.tell = native.saves_filed
        native.saves_filed(live.by_storage)
        native.begin(watching, digests.LARGE, *attentive, memory.followed, memory.reread, live.unsorted)

    def test(self) -> None:
        """Raise AssertionError if the native part does not take a save, a read, a release or a write as it should."""
        context = self._context

        def unexpected(_: object) -> Any:
            raise AssertionError("a usual save was left to Python")

        def holds(fact: bool, what: str) -> None:
            if not fact:
                raise AssertionError(what)

        with modes.trial():
            x = torch.arange(6.0, device="cpu").view(2, 3).t().requires_grad_()
            hook_stack.push_hooks(unexpected, unexpected)
            try:
                self.begin(watching=True, attentive=({}, {}))
                self.enter((unexpected, unexpected), None, contents=False)
                before, number = self.alive(), engine_state.next_node()
                y: Any = x.exp()
                holds(self.alive() == before + 1, "a save is noted")
                holds(y.grad_fn._saved_result.equal(y) and self.alive() == before + 1, "a save is read")
                self.hand_over(None)
                handles = [handle for handle in context.live.all() if handle.tensor() is y]
                holds([(one.node, one.version) for one in handles] == [(number, 0)], "a save is handed over")
                holds(self.alive() == 0, "what was handed over is Python's")
                y = x.exp()
                holds(self.alive() == 1, "a second save is noted")
                del y
                holds(self.alive() == 0, "a save is released")
                spare_key.set_key(True)
                y = (x * 1).add_(1)
                spare_key.set_key(False)
                (noted,) = self.records()
                holds((noted.written.op, noted.version) == ("aten::add_", 0), "a write is noted")
                holds(noted.key == storages.storage_key(y), "a write is noted for its storage")
                holds(noted.geometry == layout.geometry(y), "a write is noted with its geometry")
                holds(self.place_here() == sites.place_of(sys._getframe()), "lines are found")
                for tensor in (x.detach(), x.detach().t(), x.detach()[:, :1]):
                    holds(self.fingerprint(tensor) == fingerprint(tensor), "fingerprints are equal")
            finally:
                spare_key.set_key(False)
                hook_stack.pop_hooks()
                self.leave()
                self.end()

    def _handle(
        self,
        kind: int,
        tensor: torch.Tensor | None,
        alias: torch.Tensor,
        version: int,
        digest: Digest,
        node: int,
        moment: int,
        place: Place | None,
    ) -> Handle:
        """Return the Handle of a save that the native part has taken, and put it into the live table."""
        handle = _CLASSES[kind](_Gone() if tensor is None else tensor)  # type: ignore[arg-type]
        handle.alias, handle.version, handle.suspect, handle.digest, handle.shown = alias, version, None, digest, None
        handle.node, handle.moment, handle.place = node, moment, place
        live = self._context.live
        live.unsorted.append(ref(handle))
        if len(live.unsorted) > live.limit:
            self._context.core.guarded(live.sweep)
        return handle


_bridge: Bridge | None = None
_without = ""
"""Why there is no bridge, once it was tried. No exception: its frames would keep what the program holds in them."""


def connect(context: Context) -> None:
    """Load the native part if there is one, before the first kernel is registered. Once in a process."""
    global _bridge, _without
    if _bridge is not None or _without:
        return
    try:
        _bridge = Bridge(load(), context)
        write_kernels.take_first(_bridge.enroll)
    except NotNative as reason:
        _without = str(reason)
    except Exception as failure:
        _bridge, _without = None, f"cannot be used: {lost('', failure).why}"


def begin(context: Context) -> None:
    """Let the native part take the usual saves and writes, where it is there and its self-test has passed."""
    global _bridge, _without
    if _bridge is None:
        return
    if context.live.beside is None:
        try:
            _bridge.test()
        except Exception as failure:
            _bridge, _without = None, f"its self-test has failed: {lost('', failure).why}"
            return
        digests.of_usual = _bridge.fingerprint
        storages.key_of_usual, storages.ref_of_usual = _bridge.storage_key, _bridge.storage_ref
        sites.of_native = _bridge.place_here
    context.native = context.memory.native = context.live.beside = _bridge
    if context.contents is not None:
        context.contents.sees_all_writes = False
    _bridge.begin(watching=context.watching, attentive=(context.attentive, context.attended))


def end(context: Context) -> None:
    """Leave everything to Python. Saves that were taken are read as before."""
    if context.native is not None:
        context.native.end()
        context.native = None


def forget(context: Context) -> None:
    """Drop the records of the native part."""
    if _bridge is not None:
        _bridge.forget(context.entered == 0)


def why_not() -> str:
    """Return why there is no native part; empty if there is one, or if nothing was armed yet."""
    return _without


class _Gone:
    """Stands for a tensor that is gone when the weak reference to it is made."""

    __slots__ = ("__weakref__",)


def _kind_of(path: str) -> tuple[int, bool]:
    kind = sites.kind_of(path)
    return kind, path in sites.KINDS


def _is_alive(table: LiveSaves[Any], key: int | None) -> bool:
    """Return whether something on a storage is alive, or anything at all (None)."""
    return table.any() if key is None else table.has(key)


def _failed(
    context: Context,
    written: Written,
    tensor: torch.Tensor | None,
    given: tuple[torch.Tensor, ...] | None,
    error: RuntimeError,
) -> None:
    if kernel_functions.told() is not None:
        args = (tensor, *((...,) if given is None else given))
        context.parts.refused(context, written._replace(arguments=((0, ""),), flag=None), args, {}, error)
