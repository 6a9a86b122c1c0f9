"""Counts the bytes that saves keep alive, storage by storage, and remembers who kept them when they were the most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Literal
from weakref import WeakKeyDictionary, ref

import torch

from noclobber.model.forks import lock
from noclobber.model.reports.ledger import Entry, Ledger
from noclobber.model.source import source_line
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.seen.sites import Place, site_of
from noclobber.observe.describe.called import modules_called
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.frames import frame_above
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.torch_api.tensors.local_numbers import parts

Lives = Literal["", "parameter", "buffer"]
"""What else keeps a storage alive, for as long as the model is there."""


@dataclass(slots=True, eq=False)
class _Storage:
    """A storage that saves keep, for the save that came first."""

    bytes: int
    place: Place | None
    module: str
    lives: Lives
    saver: ref[Handle]
    """The handle that came first."""
    reference: storages.StorageRef
    """Tells whether the storage is still there, and its key means it."""
    holders: int = 1
    node: str = ""


class SavedBytes:
    """Counts for as long as it is among the accounts of the context. Its numbers may be read later too."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self._held: dict[int, ref[Handle]] = {}
        """The references to handles, by their own `id`."""
        self._now, self._most = 0, -1
        self._peak: list[_Storage] = []
        self._rising = False
        """Whether the bytes are at their most so far, and nobody has written down who keeps them."""
        self._where: Place | None = None
        self._begun = self._backwards = 0
        self._names: WeakKeyDictionary[torch.nn.Module, WeakKeyDictionary[torch.nn.Module, str]] = WeakKeyDictionary()
        self._lock = lock()

    def saved(self, handle: Handle, frame: FrameType) -> None:
        memory = _memory_of(handle.alias)
        key = storages.storage_key(memory)
        if key is None:
            return
        with self._lock:
            known = self._storages.get(key)
            if known is not None and not known.reference.expired():
                known.holders += 1
                self._hold(handle, key, known)
                return
            size = sum(storages.storage(one).nbytes() for one in parts(memory) or [memory])
            modules = [one for one, _ in modules_called(frame)]
            lives = _lives(handle.tensor(), key, modules)
            reference = storages.storage_ref(memory)
            one = _Storage(size, handle.place, self._path(*modules), lives, ref(handle), reference)
            self._storages[key] = one
            self._hold(handle, key, one)
            if not lives:
                self._now += size
            if self._now > self._most:
                self._most, self._rising = self._now, True
                self._where, self._backwards = handle.place, self._begun

    def _hold(self, handle: Handle, key: int, storage: _Storage) -> None:
        held = ref(handle, partial(self._released, key, storage))
        self._held[id(held)] = held

    def _released(self, key: int, one: _Storage, held: ref[Handle]) -> None:
        with self._lock:
            self._held.pop(id(held), None)
            one.holders -= 1
            if one.holders:
                return
            if self._rising:
                self._write_down()
            if self._storages.get(key) is one:
                del self._storages[key]
            self._now -= 0 if one.lives else one.bytes

    def _write_down(self) -> None:
        self._peak, self._rising = list(self._storages.values()), False

    def begins(self, call: Backward) -> None:
        """Learn which nodes keep what, before a backward reads it."""
        self._begun += 1
        with self._lock:
            if self._rising:
                self._write_down()
        for node in graph.walk(graph.roots_of(call.outputs)):
            for saved in graph.saves_of_or_gone(node):
                handle = graph.content(saved)
                if isinstance(handle, Handle):
                    one = self._storages.get(storages.storage_key(_memory_of(handle.alias)) or 0)
                    if one is not None and (not one.node or one.saver() is handle):
                        one.node = node.name()

    def ledger(self) -> Ledger:
        """Return what was kept at the peak, with equal lines, modules and nodes as one entry."""
        with self._lock:
            if self._rising:
                self._write_down()
            storages = list(self._peak)
        sums: dict[tuple[Place | None, str, str, Lives], list[int]] = {}
        for one in storages:
            total = sums.setdefault((one.place, one.module, one.node, one.lives), [0, 0])
            total[0] += one.bytes
            total[1] += 1
        entries = [_entry(*key, size, count) for key, (size, count) in sums.items()]
        at = _entry(self._where, "", "", "", 0, 0)
        entries.sort(key=lambda one: (one.lives_anyway, -one.bytes, one.path, one.line))
        return Ledger(tuple(entries), at.path, at.line, self._backwards)

    def _path(self, *modules: torch.nn.Module) -> str:
        """Return the path of the innermost module, such as "ResNet.layer1.0.conv1". No module is held for it."""
        if not modules:
            return ""
        root, inner = modules[0], modules[-1]
        names = self._names.get(root)
        if names is None:
            names = self._names[root] = WeakKeyDictionary({one: name for name, one in root.named_modules()})
        name = names.get(inner, type(inner).__name__)
        return f"{type(root).__name__}.{name}" if name else type(root).__name__


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what holds the bytes: of a DTensor, whose own storage is one of the whole shape without bytes (torch 2.13;
    tests/observe/fake/test_ranks.py), the part of this rank."""
    while len(held := parts(tensor)) == 1:
        tensor = held[0]
    return tensor


def _entry(place: Place | None, module: str, node: str, lives: Lives, size: int, count: int) -> Entry:
    site = site_of(place)
    parameter, buffer = lives == "parameter", lives == "buffer"
    if site is None:
        return Entry("", 0, 0, module, node, size, count, parameter, buffer=buffer)
    span = site.span()
    source = source_line(span.path, span.line).strip()
    return Entry(span.path, span.line, span.column, module, node, size, count, parameter, source, buffer=buffer)


def _lives(tensor: torch.Tensor | None, key: int, modules: Sequence[torch.nn.Module]) -> Lives:
    """Return what lives without the save too: a leaf that requires a gradient, a parameter that is frozen, or a buffer,
    and the views of these.

    A buffer is one of a module that is being called, or of a module inside the innermost one. `key` is the storage's.
    """
    if tensor is None:
        return ""
    whole = tensor_state.whole(tensor)
    if whole.requires_grad or isinstance(whole, torch.nn.Parameter):
        return "parameter" if whole.is_leaf else ""
    outer = itertools.chain.from_iterable(one.buffers(recurse=False) for one in modules[:-1])
    inner = itertools.chain.from_iterable(one.buffers() for one in modules[-1:])
    return "buffer" if any(storages.storage_key(one) == key for one in (*outer, *inner)) else ""


def arm(context: Context, way: Way) -> None:
    """Count each save, and learn at each backward call which nodes keep what."""

    def saved(handle: Handle, _: torch.Tensor) -> None:
        frame = frame_above(3)
        for one in context.accounts:
            one.saved(handle, frame)

    def begin(call: Backward) -> None:
        for one in context.accounts:
            one.begins(call)

    context.take_saves(way, saved, among=context.accounts)
    context.calls.watch(way, begin, among=context.accounts)
