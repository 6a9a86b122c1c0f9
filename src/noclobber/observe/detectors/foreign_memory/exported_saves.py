"""Watches the live saves whose memory foreign code may hold, line by line, and says who wrote to them."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from weakref import ref

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.events import Handed, Tensor, Via, Write
from noclobber.observe.core import threads
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, compare
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.detectors.foreign_memory import exports, forked_children, line_tracer, unseen_writers
from noclobber.observe.detectors.foreign_memory.byte_monitor import ByteMonitor
from noclobber.observe.detectors.foreign_memory.exports import Handout
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import compile_guard, modes
from noclobber.observe.torch_api.tensors import storages

MOST_STORAGES = 4096
"""Storages whose handouts are remembered; the latest are kept."""
MOST_OF_ONE = 16
"""Handouts that are remembered for one storage."""
HAS_TRACER = "the lines of foreign writes, as the program has a tracer of its own (a debugger, coverage)"


class ExportedSaves:
    """The memory that is handed out, by the key of its storage. A key is valid only while its storage lives."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self.handed: dict[int, list[Handout]] = {}
        self.monitor = ByteMonitor(self.is_out)
        self.lines = line_tracer.Lines(self._passed, self._failed)
        for callback in self.lines.callbacks():
            compile_guard.never_compile(callback)  # torch 2.10 ends a fullgraph compilation at one, later ones skip it
        self.processes = forked_children.Processes()
        self.exports = exports.Exports(self.hand, way)

    def hand(self, tensor: torch.Tensor, by: str, frame: FrameType, held: Callable[[], bool]) -> None:
        """Record that the code of `frame` has just handed out a tensor's memory."""
        with modes.plain():
            key = storages.storage_key(tensor)
            if key is None or not tensor.numel():
                return
            for one in self._context.allocations:
                one.handed(key)
            storage = ref(storages.storage(tensor), self._way.entry(partial(self._died, key)))
        kept = [one for one in self.handed.pop(key, ()) if one.storage() is not None]
        if len(kept) >= MOST_OF_ONE:
            kept = [one for one in kept if one.held()][1 - MOST_OF_ONE :]
        if len(self.handed) >= MOST_STORAGES:
            self.handed.pop(next(iter(list(self.handed))), None)
        self.handed[key] = [*kept, Handout(by, place_of(frame), storage, held)]
        self._context.untracked.handed_out(tensor, key, by, frame)
        compare(self._context.contents, self._context.live.at(key))
        if held():
            for handle in self._context.live.at(key):
                self._watch(handle, key, frame, fresh=False)

    def saved(self, handle: Handle, _: torch.Tensor) -> None:
        """Look at a new save whose memory is handed out, and watch it while it is. Called only while any memory is."""
        key = storages.storage_key(handle.alias)
        if key not in self.handed:
            return
        self._context.untracked.saved(handle.alias, key, site_of(handle.place))
        if self.is_out(key):
            self._watch(handle, key, sys._getframe(1), fresh=True)

    def is_out(self, key: int) -> bool:
        """Return True if foreign code may hold this storage now."""
        return any(one.storage() is not None and one.held() for one in self.handed.get(key, ()))

    def writes(
        self, handle: Handle, made: Node | None, tensor: Tensor, backward: Backward, *, explained: bool
    ) -> tuple[Write, ...]:
        """Return none if the write that torch saw explains the change. If neither a line of this process nor another
        process is known, the one write covers the whole window from the save to the read."""
        change, key = self.monitor.change(handle, self.lines.here()), storages.storage_key(handle.alias)
        if explained and (change is None or change.seen):
            return ()
        if told := self.processes.told(key, tensor):
            return told
        handout = self._blamed(key, storages.storage(handle.alias))
        handed = Handed(handout.by, site_of(handout.place)) if handout is not None else None
        only_shared = handout is None or handout.by == exports.SHARED
        via: Via = "process" if only_shared and forked_children.is_shared(handle.alias) else "foreign"
        site, since = site_of(backward.place), site_of(handle.place)
        if change is not None:
            if change.place is not None:
                site, since = site_of(line_tracer.statement(change.place)), None
            if change.since is not None:
                since = site_of(line_tracer.statement(change.since))
        follows = change is not None and made is not None and graph.is_read_since(backward.outputs, made, change.node)
        return (Write("", site, via=via, tensor=tensor, since=since, handed=handed, untracked=follows),)

    def entered(self, *_: object, **__: object) -> None:
        """Follow the calling thread if anything is watched. Called when a thread begins, or goes on after it waited."""
        if self.monitor:
            self.lines.start(sys._getframe(1))

    def rest(self) -> None:
        self.lines.end()
        self.monitor.forget()

    def disarm(self) -> None:
        """Stop watching, and drop everything."""
        self._context.memory.foreign_writers = None
        self.rest()
        self.handed.clear()
        self.exports.forget()
        self.processes.close()

    def _blamed(self, key: int | None, storage: object) -> Handout | None:
        """Return the latest handout of this storage, else of its memory, rather one still held; None if none."""
        alive = [one for one in self.handed.get(key or 0, ()) if one.storage() is not None]
        return max(reversed(alive), key=lambda one: (one.storage() is storage, one.held()), default=None)

    def _watch(self, handle: Handle, key: int, frame: FrameType, *, fresh: bool) -> None:
        if not self.monitor.watch(handle, key, place_of(frame), fresh=fresh) or self.lines.start(frame):
            return
        self.monitor.drop(handle)
        if HAS_TRACER not in self._context.bus.unseen:
            self._context.bus.not_seen(HAS_TRACER)

    def _passed(self, place: Place) -> None:
        if not self.monitor.passed(place):
            self.lines.stop()

    def _failed(self, failure: Exception) -> None:
        self._way.fail(failure)
        with contextlib.suppress(Exception):
            self.lines.end()

    def _died(self, key: int, storage: object) -> None:
        kept = [one for one in self.handed.get(key, ()) if one.storage is not storage]
        if kept:
            self.handed[key] = kept
        else:
            self.handed.pop(key, None)


def arm(context: Context, way: Way) -> None:
    """Watch the memory that is handed out until the recorder disarms. Does nothing if contents are not watched."""
    if context.contents is None:
        return
    exported = ExportedSaves(context, way)
    exported.exports.put(None if context.native is None else context.native.eval_frame_function)
    threads.around(way, exported.entered, lambda: None)
    if sys.version_info < (3, 12):
        # sys.settrace follows only the calling thread, so a thread that runs already must pass a call of ours.
        way.after(threading.Condition, "wait", exported.entered)
        way.before(concurrent.futures.thread._WorkItem, "run", exported.entered)
    way.patches.put(sys, "gettrace", _without_ours(exported.lines, way))
    way.at_end(exported.disarm)
    forked_children.arm(context, way, exported.processes, exported.rest)
    context.take_saves(way, exported.saved, among=exported.handed)
    context.memory.foreign_writers = exported
    context.contents.handed = exported.handed
    unseen_writers.arm(context, way)


def _without_ours(followed: line_tracer.Lines, way: Way) -> Callable[[], object]:
    """Return a `sys.gettrace` that hides noclobber's tracer: some scripts run differently under a debugger."""

    @functools.wraps(line_tracer.gettrace)
    def gettrace() -> object:
        tracer = line_tracer.gettrace()
        return None if tracer is not None and way.guarded(lambda: followed.is_ours(tracer)) else tracer

    return gettrace
