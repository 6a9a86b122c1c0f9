"""The recorder: what is armed in this process, which writes met which saves, and what comes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from noclobber.model.clobber import Clobber, LiveSaves
from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.model.kept import Kept
from noclobber.model.silent import Event
from noclobber.observe import (
    again,
    aliases,
    assigning,
    checkpoints,
    foreign_hooks,
    functions,
    gradients,
    graph,
    internals,
    keeping,
    log,
    meeting,
    patches,
    refusals,
    replaced,
    saves,
    steps,
    testimony,
    words,
    writes,
)
from noclobber.observe.contents import Contents, Digest, OnDevice, fingerprint, same
from noclobber.observe.memory import Memory
from noclobber.observe.records import Backward, Record
from noclobber.observe.saves import Handle, Needed, Suspect
from noclobber.observe.sites import place_of, site_of
from noclobber.observe.untracked import Untold

T = TypeVar("T")


class Listener(Protocol):
    """Who hears of clobbers, at once; `error` is what the program is about to get, None where PyTorch stays silent."""

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Called when a changed save is read, or a write is stopped."""

    def kept(self, one: Kept) -> None:
        """Called when bytes were copied for a save before a write, where they are preserved."""

    def noticed(self, event: Event) -> None:
        """Called when something silent went wrong that is no clobber of a save."""

    def refused(self, error: RuntimeError, refusal: Refusal) -> None:
        """Called when an operator refuses to write; the error may still be caught by the program."""

    def failed(self, failure: Exception) -> None:
        """Called when noclobber itself failed, and the program goes on."""


class Recorder:
    """Armed while it has listeners. `watching` adds the save registry to the write log."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.watching = False
        self.contents: Contents | None = None
        self.later: list[testimony.Later] = []
        self.stop_writes = False
        self.keeping = False
        """Whether the bytes that backward still needs are kept before a write changes them."""
        self.careful = 0
        """More than 0 where writes to tensors in the graph must be looked at too: to stop them, or as versions lie."""
        self.put_off: set[Handle] = set()
        """Saves of bytes that are out of their memory for the moment, and will be back (reruns.py)."""
        self.attentive: list[log.Look] = []
        self.by_key = True
        self.python_in_backward = False
        """Whether hooks may run there: else the engine's own writes, which reach gradients only, go unlogged."""
        self.live: LiveSaves[Handle] = LiveSaves(internals.storage_key)
        self.memory = Memory()
        self.backwards: list[Backward] = []
        self.unseen: dict[str, int] = {}
        self.told = 0
        """Clobbers found so far."""
        self.thread = self.memory.thread
        self.patches = patches.Patches()
        self.untold = Untold(self)
        self.replaced = replaced.Replaced(self)
        self._moves = keeping.following_moves(self.live)
        self.meet = partial(meeting.meet, self)
        """A write met live saves of its storage."""
        self._without_storage = partial(self.not_seen, "writes to tensors without a storage (sparse, nested)")
        self._steps = steps.Steps(self.memory, self.backwards, self.meet)

    def arm(self, *, watching: bool, contents: bool = False, by_key: bool | None = None) -> None:
        """Start seeing. Raises UnsupportedTorch where this release lacks what is needed."""
        internals.require()
        self.by_key = writes.key_answers() if by_key is None else by_key
        self.watching = watching
        self.contents = Contents() if contents else None
        if watching:
            before = log.writes_to_saves(
                self.live, self.memory, self.backwards, self, self.meet, self.untold, self._without_storage
            )
        else:
            before = log.every_write(self.memory, self.backwards, self._without_storage)
        writes.connect(writes.Sink(before, partial(refusals.write_failed, self), self.views_made))
        patches.around_backward(self.patches, self._around_backward)
        patches.around_threads(self.patches, self.enter, self.leave)
        patches.on_new_operators(self.patches, writes.rescan)
        patches.around_custom_backward(self.patches, self.listening)
        gradients.arm(self)
        foreign_hooks.arm(self)
        if watching:
            patches.on_saved_tensors(self.patches, saves.originals)
            assigning.arm(self)
            replaced.arm(self)
            aliases.arm(self)
            checkpoints.arm(self)
            functions.arm(self)
            patches.in_preserved_versions(self.patches, self.versions_preserved)
            patches.around_disabled_hooks(self.patches, self.withdraw, self.put_back)
        self._steps.listen(self.live if watching else None, self.by_key)
        self.enter()

    def disarm(self, *, forget: bool = True) -> None:
        """Stop seeing and put PyTorch back as it was found; `forget` what was seen, unless it is to go on otherwise."""
        self.leave()
        writes.disconnect()
        self._steps.stop()
        self.patches.undo()
        self.keep(False)
        self.watching = self.stop_writes = self.python_in_backward = False
        self.careful = 0
        self.contents, self.later = None, []
        if forget:
            self.memory.forget()
            self.untold.forget()
            self.replaced.forget()
            self.unseen = {}

    def keep(self, keeping: bool) -> None:
        """Start or stop to keep what writes change."""
        if keeping == self.keeping:
            return
        self.keeping = keeping
        self.careful += 1 if keeping else -1
        (self.attentive.append if keeping else self.attentive.remove)(self._moves)
        if (thread := self.thread).hooks is not None:
            thread.hooks = self._hooks()
            if not thread.withdrawn:
                internals.remove_hooks(saves.are_ours)
                internals.push_hooks(*thread.hooks)

    # -- this thread -------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Arm the calling thread."""
        thread = self.thread
        if thread.entered:
            return
        thread.entered = True
        if self.by_key:
            internals.set_key(True)
        else:
            thread.mode = writes.enter_mode()
        if self.watching:
            thread.hooks = self._hooks()
            self.put_back(first=True)

    def _hooks(self) -> saves.Hooks:
        changed = partial(self.changed, silently=not self.keeping)
        return saves.hooks(self.live, self.thread.history, changed, self.contents, self.memory.aliases)

    def leave(self) -> None:
        """Disarm the calling thread."""
        thread = self.thread
        if not thread.entered:
            return
        thread.entered = thread.muted = False
        thread.step = None
        self.versions_preserved(-thread.preserving)
        if self.by_key:
            internals.set_key(False)
        elif thread.mode is not None:
            writes.leave_mode(thread.mode)
            thread.mode = None
        if thread.hooks is not None and not thread.withdrawn:
            internals.remove_hooks(saves.are_ours)
        thread.hooks, thread.withdrawn = None, False

    def withdraw(self) -> None:
        """Take our hooks off this thread's stack, if they are on top of it."""
        thread = self.thread
        if thread.hooks is not None and not thread.withdrawn and saves.are_ours(internals.top_hooks(True)):
            internals.pop_hooks()
            thread.withdrawn = True

    def put_back(self, *, first: bool = False) -> None:
        """Push our hooks again after `withdraw`."""
        thread = self.thread
        if thread.hooks is not None and (first or thread.withdrawn):
            thread.withdrawn = False
            internals.push_hooks(*thread.hooks)
            if not first:
                self.not_seen("saves inside torch.func transforms")

    def backward_hooks(self) -> None:
        """The program registered a hook that will run in the midst of a backward."""
        self.python_in_backward = True

    def versions_preserved(self, more: int) -> None:
        """This thread enters (1) or leaves (-1) a block that puts version counters back as they were."""
        if self.thread.preserving + more >= 0:
            self.thread.preserving += more
            self.careful += more

    @property
    def strict(self) -> bool:
        """Whether a changed save raises where PyTorch is silent, as it could neither be stopped nor kept."""
        return self.stop_writes or self.keeping

    def stop(self, writes: bool) -> None:
        """Whether to stop writes to what was saved."""
        self.careful += writes - self.stop_writes
        self.stop_writes = writes

    def not_seen(self, what: str) -> None:
        """Count something for the report's coverage."""
        self.unseen[what] = self.unseen.get(what, 0) + 1

    def views_made(self, op: str) -> None:
        """An operator is about to return several views; the node it makes gets the next number."""
        self.memory.views.append((internals.next_node(), op, place_of(sys._getframe(1))))

    # -- reads -------------------------------------------------------------------------------------------------------

    def changed(self, handle: Handle, digest: Digest, *, silently: bool) -> torch.Tensor:
        """A save is unpacked and its version moved, its bytes are others, or a write met it. Raises what PyTorch would
        raise, and where not `silently` what it would not; `digest`: the fingerprint at read, None if it was not taken.
        """
        alias, version, current = handle.alias, handle.version, int(handle.alias._version)
        node, expected = internals.current_node(), saves.version_at_save(handle)
        if not silently and not testimony.is_read(handle, node):
            return alias
        if isinstance(version, Suspect):
            if version.kept is not None:
                return version.kept
            if version.refuses is not None and silently and refusals.is_refused(handle, node):
                raise refusals.detached(handle, self.reading())
        if current != expected:
            if not silently and same(handle.digest, fingerprint(alias) if digest is None else digest):
                return alias  # where bytes are preserved: what moved the version was written elsewhere
            clobber = self.guarded(lambda: testimony.clobber_of(handle, node, self.reading(), self.memory))
            message = clobber.message if clobber else words.stale_message(alias, None, current, expected)
            error = ClobberError(message)
            error.handles = {id(handle)}
            if clobber is not None:
                refusals.remember(error, clobber)
                self.tell([clobber], error)
            raise error
        if handle.digest is None:
            return alias
        if digest is None:
            digest = fingerprint(alias)
        if isinstance(digest, OnDevice) and silently:
            self.later.append(testimony.later(handle, node, digest, self.reading()))
        elif not same(digest, handle.digest) and testimony.is_read(handle, node):
            clobber = self.guarded(lambda: testimony.clobber_of(handle, node, self.reading(), self.memory))
            stopped = ClobberError(testimony.CHANGED) if self.strict or not silently else None
            self.tell([clobber] if clobber else [], stopped)
            if stopped is not None:
                raise stopped
        return alias

    def _settle(self) -> None:
        """Compare the fingerprints that stayed on a device, all at once: the program waits for it only here."""
        waiting, self.later = self.later, []
        differ = torch.stack([one.differs.cpu() for one in waiting]).tolist()
        found = [clobber for one, changed in zip(waiting, differ, strict=True) if changed for clobber in one.clobbers]
        stopped = ClobberError(testimony.CHANGED) if self.strict and found else None
        self.tell(found, stopped)
        if stopped is not None:
            raise stopped

    def guarded(self, make: Callable[[], T]) -> T | None:
        """What `make` makes; None where noclobber itself fails, which must not change what the program gets."""
        try:
            return make()
        except Exception as failure:
            for listener in self.listeners:
                listener.failed(failure)
            return None

    def reading(self) -> Backward:
        """The backward call under way; of a save that is read outside of one, where it is read."""
        if self.backwards:
            return self.backwards[-1]
        return Backward(place_of(sys._getframe(2)), (), "access")

    def _around_backward(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.thread.entered:
                return engine(t_outputs, *args, **kwargs)
            self._steps.unmute()
            call = "backward" if kwargs.get("accumulate_grad") else "grad"
            backward = Backward(place_of(sys._getframe(1)), t_outputs, call)
            create_graph = len(args) > 2 and args[2]
            logged = self.by_key and not self.python_in_backward and internals.key_is_set()
            quiet = logged and keeping.log_may_rest(self, t_outputs, create_graph)
            self.replaced.backward_begins(backward, args[3] if len(args) > 3 else ())
            unseen = self.untold.attach(backward)
            self.backwards.append(backward)
            saving = again.saved_as_inputs(self.thread.hooks) if create_graph else nullcontext()
            if quiet:
                internals.set_key(False)
            if self.contents is not None:
                self.contents.begin(sharing=quiet)
            try:
                with saving:
                    result = engine(t_outputs, *args, **kwargs)
            except RuntimeError as error:
                self.backward_failed(backward, error)
                raise
            finally:
                self.backwards.remove(backward)
                self.untold.detach(unseen)
                if quiet and self.thread.entered:
                    internals.set_key(True)
                if self.contents is not None:
                    self.contents.begin(sharing=False)
            if self.later:
                self._settle()
            self.thread.boundary = internals.next_node()
            if call == "backward":
                self.memory.accumulated.append((self.thread.boundary, backward.place))
            return result

        return _engine_run_backward

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Log writes again while Python runs inside a backward that goes unlogged."""
        quiet = bool(self.backwards) and self.by_key and bool(self.listeners) and not internals.key_is_set()
        if quiet:
            internals.set_key(True)
        try:
            yield
        finally:
            if quiet:
                internals.set_key(False)

    def backward_failed(self, backward: Backward, error: RuntimeError) -> None:
        """An error leaves a backward call: find the other stale saves of its graph, or what was freed."""
        event, message = refusals.remembered(error), str(error)
        if words.is_stale(message) and not isinstance(event, Refusal):
            seen = error.handles if isinstance(error, ClobberError) else set[int]()
            roots = graph.roots_of(backward.outputs)
            others = self.guarded(lambda: testimony.stale_saves(roots, backward, self.memory, seen))
            if event is None and others:
                refusals.remember(error, others[0])
            self.tell(others or [], error)
        elif event is None and refusals.is_freed(message):
            roots = graph.roots_of(backward.outputs)
            refusal = self.guarded(lambda: refusals.refusal_of_freed(message, roots, backward, self.memory))
            if refusal is not None:
                refusals.remember(error, refusal)

    def kept(self, noted: Record, handle: Handle, size: int) -> None:
        """Bytes were kept before a write, for a save."""
        again = isinstance(handle, Needed)
        one = Kept(site_of(noted.place), noted.written.op, site_of(handle.place), size, 1, again)
        for listener in self.listeners:
            listener.kept(one)

    def notice(self, event: Event) -> None:
        """Hand something else that went wrong to whoever listens."""
        for listener in self.listeners:
            listener.noticed(event)

    def tell(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Hand clobbers to whoever listens."""
        self.told += len(clobbers)
        self.untold.explained(clobbers)
        if clobbers:
            for listener in self.listeners:
                listener.clobbered(clobbers, error)


RECORDER = Recorder()
"""The one of this process: dispatch keys, hooks and patches are process-wide or thread-wide, never per watch."""
