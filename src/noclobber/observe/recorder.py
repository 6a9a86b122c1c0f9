"""The recorder: what is armed in this process, which writes met which saves, and what comes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from noclobber.model.clobber import Clobber, LiveSaves
from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.model.silent import Event
from noclobber.observe import assigning, graph, internals, log, patches, refusals, saves, steps, testimony, writes
from noclobber.observe.contents import Contents, Digest, OnDevice, fingerprint
from noclobber.observe.memory import Memory
from noclobber.observe.records import Backward, Record
from noclobber.observe.saves import Handle, Suspect
from noclobber.observe.sites import place_of

MOST_WRITES = 16
"""Writes kept for one save, the first and the last ones."""


T = TypeVar("T")


class Listener(Protocol):
    """Who hears of clobbers, at once; `error` is what the program is about to get, None where PyTorch stays silent."""

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Called when a changed save is read, or a write is stopped."""

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
        self.careful = 0
        """More than 0 where writes to tensors in the graph must be looked at too: to stop them, or as versions lie."""
        self.by_key = True
        self.python_in_backward = False
        """Whether hooks may run there: else the engine's own writes, which reach gradients only, go unlogged."""
        self.live: LiveSaves[Handle] = LiveSaves(internals.storage_key)
        self.memory = Memory()
        self.backwards: list[Backward] = []
        self.unseen: dict[str, int] = {}
        self.thread = self.memory.thread
        self.patches = patches.Patches()
        self._steps = steps.Steps(self.memory, self.backwards, self.meet)

    def arm(self, *, watching: bool, contents: bool = False, by_key: bool | None = None) -> None:
        """Start seeing. Raises UnsupportedTorch where this release lacks what is needed."""
        internals.require()
        self.by_key = writes.key_answers() if by_key is None else by_key
        self.watching = watching
        self.contents = Contents() if contents else None
        if watching:
            before = log.writes_to_saves(self.live, self.memory, self.backwards, self, self.meet, self.without_storage)
        else:
            before = log.every_write(self.memory, self.backwards, self.without_storage)
        writes.connect(writes.Sink(before, self.write_failed, self.views_made))
        patches.around_backward(self.patches, self._around_backward)
        patches.around_threads(self.patches, self.enter, self.leave)
        patches.on_new_operators(self.patches, writes.rescan)
        patches.around_custom_backward(self.patches, self.listening)
        patches.on_backward_hooks(self.patches, self.backward_hooks)
        patches.on_foreign_hooks(self.patches, self.foreign_hooks)
        if watching:
            patches.on_saved_tensors(self.patches, saves.originals)
            assigning.arm(self)
            patches.in_preserved_versions(self.patches, self.versions_preserved)
            patches.around_disabled_hooks(self.patches, self.withdraw, self.put_back)
        self._steps.listen(self.live if watching else None, self.by_key)
        self.enter()

    def disarm(self) -> None:
        """Stop seeing and put PyTorch back as it was found."""
        self.leave()
        writes.disconnect()
        self._steps.stop()
        self.patches.undo()
        self.watching = self.stop_writes = self.python_in_backward = False
        self.careful = 0
        self.contents, self.later = None, []
        self.memory.forget()
        self.unseen = {}

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
            thread.hooks = saves.hooks(self.live, thread.history, self.changed, self.contents)
            self.put_back(first=True)

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
        self.withdraw()
        thread.hooks, thread.withdrawn = None, False

    def withdraw(self) -> None:
        """Take our hooks off this thread's stack, if they are on top of it."""
        thread = self.thread
        if thread.hooks is not None and not thread.withdrawn and internals.top_hooks(True) == thread.hooks:
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

    def foreign_hooks(self) -> None:
        """The program pushed its own saved-tensor hooks; PyTorch makes no version check under them either."""
        self.python_in_backward = True
        if self.watching:
            self.not_seen("saves under the program's own saved-tensor hooks (save_on_cpu, checkpoint)")

    def backward_hooks(self) -> None:
        """The program registered a hook that will run in the midst of a backward."""
        self.python_in_backward = True

    def versions_preserved(self, more: int) -> None:
        """This thread enters (1) or leaves (-1) a block that puts version counters back as they were."""
        if self.thread.preserving + more >= 0:
            self.thread.preserving += more
            self.careful += more

    def stop(self, writes: bool) -> None:
        """Whether to stop writes to what was saved."""
        self.careful += writes - self.stop_writes
        self.stop_writes = writes

    def without_storage(self) -> None:
        """A write went to a tensor that has no storage to join it to."""
        self.not_seen("writes to tensors without a storage (sparse, nested)")

    def not_seen(self, what: str) -> None:
        """Count something for the report's coverage."""
        self.unseen[what] = self.unseen.get(what, 0) + 1

    # -- writes ------------------------------------------------------------------------------------------------------

    def meet(self, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> None:
        """A write met live saves of its storage: keep it with each.

        The bytes are remembered where the save's version counter may stay still. A tensor in the graph shares the
        counter of its saves; one made from `.data` or wrapped in a Parameter may have its own.
        """
        preserving = self.thread.preserving
        if preserving:
            noted = noted._replace(written=noted.written._replace(uncounted=True))
        apart = noted.written.uncounted or not tensor.requires_grad or type(tensor) is torch.nn.Parameter
        for handle in handles:
            marked = handle.version
            if not isinstance(marked, Suspect):
                marked = handle.version = Suspect(marked)
            if apart and handle.digest is None and testimony.may_touch(handle.alias, noted.geometry):
                handle.digest = fingerprint(handle.alias)
            written = marked.writes
            entry = (noted, handle.alias._version)
            if len(written) < MOST_WRITES:
                written.append(entry)
            else:
                written[-1] = entry
        if noted.written.detaches:
            self._forbid_detached(tensor, handles)
        if self.stop_writes and not (preserving or noted.written.is_statistics or noted.written.is_collective):
            self._stop(handles, noted)

    def _stop(self, handles: list[Handle], noted: Record) -> None:
        found = [
            clobber for handle in handles if (clobber := testimony.clobber_to_come(handle, noted)).writes[0].overlaps
        ]
        if found:
            error = ClobberError(testimony.STOPPED)
            refusals.remember(error, found[0])
            self.tell(found, error)
            raise error

    def _forbid_detached(self, tensor: torch.Tensor, handles: list[Handle]) -> None:
        """PyTorch refuses to unpack an input that was detached in place after its save (saved_variable.cpp)."""
        producer = tensor.grad_fn
        if producer is None:
            return
        for handle in handles:
            marked = handle.version
            if handle.tensor() is tensor and handle.node != producer._sequence_nr() and isinstance(marked, Suspect):
                marked.refuses = refusals.DETACHED

    def write_failed(
        self, written: writes.Written, args: tuple[Any, ...], kwargs: dict[str, Any], error: RuntimeError
    ) -> None:
        """An operator raised instead of writing: remember what it was about, in case the error leaves the program."""
        if refusals.remembered(error) is None and refusals.about_writing(str(error)):
            tensor = next(writes.tensors(written, args, kwargs), None)
            frame = sys._getframe(2)
            refusal = self.guarded(
                lambda: refusals.refusal_of_write(written.op, tensor, str(error), frame, self.memory)
            )
            if refusal is not None:
                refusals.remember(error, refusal)
                for listener in self.listeners:
                    listener.refused(error, refusal)

    def views_made(self, op: str) -> None:
        """An operator is about to return several views; the node it makes gets the next number."""
        self.memory.views.append((internals.next_node(), op, place_of(sys._getframe(1))))

    # -- reads -------------------------------------------------------------------------------------------------------

    def changed(self, handle: Handle, digest: Digest) -> torch.Tensor:
        """A save is unpacked and its version moved, its bytes are others, or a write met it.

        `digest` is the fingerprint at read, None where it was not taken. Raises what PyTorch would raise.
        """
        alias, version, current = handle.alias, handle.version, int(handle.alias._version)
        node, expected = internals.current_node(), saves.version_at_save(handle)
        if current != expected:
            clobber = self.guarded(lambda: testimony.clobber_of(handle, node, self._read(), self.memory))
            message = clobber.message if clobber else testimony.stale_message(alias, None, current, expected)
            error = ClobberError(message)
            error.handles = {id(handle)}
            if clobber is not None:
                refusals.remember(error, clobber)
                self.tell([clobber], error)
            raise error
        if isinstance(version, Suspect) and version.refuses is not None:
            error = ClobberError(version.refuses)
            refusals.remember(error, refusals.refusal_of_read(handle, version.refuses, self._read()))
            raise error
        if handle.digest is None:
            return alias
        if digest is None:
            digest = fingerprint(alias)
        if isinstance(digest, OnDevice):
            self.later.append(testimony.later(handle, node, digest, self._read()))
        elif digest != handle.digest and testimony.is_read(handle, node):
            clobber = self.guarded(lambda: testimony.clobber_of(handle, node, self._read(), self.memory))
            stopped = ClobberError(testimony.CHANGED) if self.stop_writes else None
            self.tell([clobber] if clobber else [], stopped)
            if stopped is not None:
                raise stopped
        return alias

    def _settle(self) -> None:
        """Compare the fingerprints that stayed on a device, all at once: the program waits for it only here."""
        waiting, self.later = self.later, []
        differ = torch.stack([one.differs.cpu() for one in waiting]).tolist()
        found = [clobber for one, changed in zip(waiting, differ, strict=True) if changed for clobber in one.clobbers]
        stopped = ClobberError(testimony.CHANGED) if self.stop_writes and found else None
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

    def _read(self) -> Backward:
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
            quiet = self.by_key and not self.python_in_backward and not self.stop_writes and internals.key_is_set()
            self.backwards.append(backward)
            if quiet:
                internals.set_key(False)
            if self.contents is not None:
                self.contents.begin(sharing=quiet)
            try:
                result = engine(t_outputs, *args, **kwargs)
            except RuntimeError as error:
                self.backward_failed(backward, error)
                raise
            finally:
                self.backwards.remove(backward)
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
        if testimony.is_stale(message) and not isinstance(event, Refusal):
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

    def notice(self, event: Event) -> None:
        """Hand something else that went wrong to whoever listens."""
        for listener in self.listeners:
            listener.noticed(event)

    def tell(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Hand clobbers to whoever listens."""
        if clobbers:
            for listener in self.listeners:
                listener.clobbered(clobbers, error)


RECORDER = Recorder()
"""The one of this process: dispatch keys, hooks and patches are process-wide or thread-wide, never per watch."""
