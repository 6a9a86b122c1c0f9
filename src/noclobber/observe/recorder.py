"""The recorder: what is armed in this process, which writes met which saves, and what comes of it."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Protocol

from noclobber.model.clobber import Clobber
from noclobber.model.events import Refusal
from noclobber.model.forks import unlocked_in_child
from noclobber.model.kept import Kept
from noclobber.model.live_saves import LiveSaves
from noclobber.model.report import Lost
from noclobber.model.silent import Event
from noclobber.observe import seeing
from noclobber.observe.core import backward_calls, custom_backwards, late_fills, save_hooks, write_kernels, write_log
from noclobber.observe.core.backward_calls import BackwardCalls
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.custom_backwards import CustomBackwards
from noclobber.observe.core.fingerprints import Contents
from noclobber.observe.core.history import Memory
from noclobber.observe.core.records import Backward, Record
from noclobber.observe.core.save_hooks import Handle, Needed
from noclobber.observe.core.sites import place_of, site_of
from noclobber.observe.describe import refusals
from noclobber.observe.detectors import changed_saves, replaced_tensors, user_save_hooks, write_policy
from noclobber.observe.detectors.untracked_writes import Untold
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.torch_api import private, self_tests


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

    def failed(self, lost: Lost) -> None:
        """Called when noclobber itself failed, and the program goes on."""


class Recorder:
    """Armed while it has listeners. `watching` adds the save registry to the write log."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.armed = self.watching = False
        self.contents: Contents | None = None
        self.stop_writes = False
        self.keeping = False
        """Whether the bytes that backward still needs are kept before a write changes them."""
        self.careful = 0
        """More than 0 where writes to tensors in the graph must be looked at too: to stop them, or as versions lie."""
        self.put_off: set[Handle] = set()
        """Saves of bytes that are out of their memory for the moment, and will be back (reruns.py)."""
        self.attentive: list[write_log.Look] = []
        """Who wants to hear of every write for the moment, with the frame that it comes from; each once."""
        self._attending: dict[write_log.Look, int] = {}
        self.by_key = True
        self.python_in_backward = False
        """Whether hooks may run there: else the engine's own writes, which reach gradients only, go unlogged."""
        self.live: LiveSaves[Handle] = LiveSaves(private.storage_key)
        self.memory = Memory()
        self.thread = self.memory.thread
        self.calls = BackwardCalls()
        self.customs = CustomBackwards()
        self.meet = partial(write_policy.meet, self)
        """A write met live saves of its storage."""
        self.unseen: dict[str, int] = {}
        self.lost: dict[Lost, int] = {}
        self.told = 0
        """Clobbers found so far."""
        self.untold = Untold(self)
        self.replaced = replaced_tensors.Replaced(self)
        self._moves = copy_before_write.following_moves(self.live)
        self._ways: list[Way] = []
        self.core = Way("some saves and writes", self.has_failed, lasting=True)
        """What everything else stands on. A failure there costs no more than the save, write or call that failed."""
        self._entered = 0
        self._armings = 0
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""
        self._counting = threading.RLock()  # what a garbage collection runs in its midst may come here too

    def arm(self, *, watching: bool, contents: bool = False, by_key: bool | None = None) -> None:
        """Start seeing. Raises UnsupportedTorch where this release lacks what everything stands on."""
        private.require()
        self.armed, self.watching = True, watching
        self.contents = Contents() if contents else None
        self.core = Way("some saves and writes", self.has_failed, lasting=True)
        try:
            self_tests.of_saves()
            self.by_key = write_kernels.key_answers() if by_key is None else by_key
            self._arm_core()
        except Exception:
            self.disarm()
            raise
        for name, arm, lasting in seeing.ALWAYS + seeing.WATCHING if watching else seeing.ALWAYS:
            way = Way(name, self.has_failed, lasting=lasting)
            self._ways.append(way)
            way.arm(partial(arm, self))
        self._armings += 1
        self.enter()

    def _arm_core(self) -> None:
        if self.watching:
            before = write_log.writes_to_saves(self)
        else:
            before = write_log.every_write(self.memory, partial(self.not_seen, write_log.WITHOUT_STORAGE))
        core = self.core
        failed, filled = core.entry(partial(refusals.write_failed, self)), core.entry(partial(late_fills.filled, self))
        write_kernels.connect(write_kernels.Sink(before, failed, core.entry(self.views_made), core.fail, filled))
        backward_calls.arm(self, core)
        custom_backwards.arm(self, core)

    def disarm(self, *, forget: bool = True) -> None:
        """Stop seeing and put PyTorch back as it was found; `forget` what was seen, unless it is to go on otherwise."""
        guarded = self.core.guarded
        guarded(lambda: self.keep(False))
        guarded(self.leave)
        guarded(write_kernels.disconnect)
        for way in (*reversed(self._ways), self.core):
            guarded(way.end)
        self._ways.clear()
        self.armed = self.watching = self.stop_writes = self.keeping = self.python_in_backward = False
        self.careful = 0
        self.attentive.clear()
        self._attending.clear()
        self.contents = None
        if forget:
            for one in (self.memory, self.untold, self.replaced):
                guarded(one.forget)
            self.unseen, self.lost = {}, {}

    def keep(self, keeping: bool) -> None:
        """Start or stop to keep what writes change."""
        if keeping == self.keeping:
            return
        self.keeping = keeping
        self.be_careful(1 if keeping else -1)
        (self.attend if keeping else self.ignore)(self._moves)
        if save_hooks.are_ours((thread := self.thread).hooks):
            thread.hooks = self._hooks()
            if thread.withdrawn is not None:
                thread.withdrawn = thread.hooks
            else:
                private.replace_hooks(save_hooks.are_ours, thread.hooks)

    def be_careful(self, more: int) -> None:
        """One more reason (1) to look at writes to tensors in the graph too, or one less (-1)."""
        with self._counting:
            self.careful += more

    def attend(self, look: write_log.Look) -> None:
        """Tell `look` of every write, from any thread, until it is ignored as often."""
        with self._counting:
            self._attending[look] = count = self._attending.get(look, 0) + 1
            if count == 1:
                self.attentive.append(look)

    def ignore(self, look: write_log.Look) -> None:
        """Tell `look` of writes no more."""
        with self._counting:
            count = self._attending.pop(look, 0)
            if count > 1:
                self._attending[look] = count - 1
            elif count:
                self.attentive.remove(look)

    # -- this thread -------------------------------------------------------------------------------------------------

    def begin_block(self) -> None:
        """The calling thread is to be watched, whether or not it was begun while watching was on."""
        self.thread.blocks += 1
        self.enter()

    def end_block(self) -> None:
        """One block of this thread less."""
        thread = self.thread
        thread.blocks = max(0, thread.blocks - 1)
        if not thread.blocks:
            self.leave()

    def enter(self) -> None:
        """Arm the calling thread; anew where it was armed before everything was."""
        thread = self.thread
        if thread.entered and thread.arming == self._armings:
            return
        self.leave()
        thread.entered, thread.arming = True, self._armings
        thread.backwards = [one for one in thread.backwards if not one.over]  # should an end have failed
        with self._counting:
            self._entered += 1
        if self.by_key:
            private.set_key(True)
        else:
            thread.mode = write_kernels.enter_mode()
        if self.watching:
            self.push_hooks()

    def push_hooks(self) -> None:
        """Push hooks for this thread. PyTorch calls the uppermost pair alone: ours calls the program's."""
        below = private.top_hooks(True)
        ours = self._hooks() if below is None or save_hooks.are_ours(below) else user_save_hooks.around(self, *below)
        private.push_hooks(*ours)
        self.thread.hooks = ours

    def has_hooks_on_top(self) -> bool:
        """Whether the uppermost pair of this thread is noclobber's, and no program's that was pushed since."""
        top = private.top_hooks(True)
        return top is not None and (save_hooks.are_ours(top) or top == self.thread.hooks)

    def _hooks(self) -> save_hooks.Hooks:
        changed = partial(changed_saves.read, self, silently=not self.keeping)
        aliases, history = self.memory.aliases, self.thread.history
        hooks = save_hooks.hooks(self.live, history, changed, self.contents, aliases, self.core.fail)
        return copy_before_write.with_sparse(hooks, self.core) if self.keeping else hooks

    def leave(self) -> None:
        """Disarm the calling thread."""
        thread = self.thread
        if not thread.entered:
            return
        # What PyTorch knows of us goes first, whatever may fail after it.
        hooks, withdrawn, mode = thread.hooks, thread.withdrawn, thread.mode
        thread.entered = thread.muted = False
        thread.hooks = thread.withdrawn = thread.mode = thread.step = None
        if self.by_key:
            private.include(private.KEY, False)
        elif mode is not None:
            write_kernels.leave_mode(mode)
        if hooks is not None and not withdrawn:
            if private.top_hooks(True) == hooks:
                private.pop_hooks()
            else:
                private.replace_hooks(lambda pair: pair == hooks or save_hooks.are_ours(pair))
        with self._counting:
            self._entered -= 1
        self.versions_preserved(-thread.preserving)

    def withdraw(self) -> None:
        """Take our hooks off this thread's stack, if they are on top of it."""
        thread = self.thread
        if thread.withdrawn is None and self.has_hooks_on_top():
            thread.withdrawn = private.top_hooks(True)
            private.pop_hooks()

    def put_back(self) -> None:
        """Push our hooks again after `withdraw`."""
        thread = self.thread
        if thread.withdrawn is not None:
            private.push_hooks(*thread.withdrawn)
            thread.withdrawn = None
            self.not_seen("saves inside torch.func transforms")

    def versions_preserved(self, more: int) -> None:
        """This thread enters (1) or leaves (-1) a block that puts version counters back as they were."""
        if self.thread.preserving + more >= 0:
            self.thread.preserving += more
            self.be_careful(more)

    def here(self) -> Backward | None:
        """The backward call that this thread runs, or works for; None outside of one."""
        call: Backward | None = private.backward_call()
        return None if call is None or call.over else call

    def reading(self) -> Backward:
        """The backward call under way; of a save that is read outside of one, where it is read."""
        return self.here() or Backward(place_of(sys._getframe(1)), (), "access")

    @property
    def is_alone(self) -> bool:
        """Whether only one thread is watched."""
        return self._entered == 1

    # -- what was seen -----------------------------------------------------------------------------------------------

    @property
    def strict(self) -> bool:
        """Whether a changed save raises where PyTorch is silent, as it could neither be stopped nor kept."""
        return self.stop_writes or self.keeping

    def stop(self, writes: bool) -> None:
        """Whether to stop writes to what was saved."""
        self.be_careful(writes - self.stop_writes)
        self.stop_writes = writes

    def not_seen(self, what: str) -> None:
        """Count something for the report's coverage."""
        with self._counting:
            self.unseen[what] = self.unseen.get(what, 0) + 1

    def has_failed(self, lost: Lost) -> None:
        """A way of seeing is lost, or failed once. Says so, however often it does."""
        with self._counting:
            times = self.lost.get(lost, 0)
            self.lost[lost] = times + 1
        for listener in () if times else self.listeners:
            listener.failed(lost)

    def views_made(self, op: str) -> None:
        """An operator is about to return several views; the node it makes gets the next number."""
        self.memory.views.append((private.next_node(), op, place_of(sys._getframe(1))))

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

    def tell(self, clobbers: list[Clobber], error: RuntimeError | None, call: Backward | None = None) -> None:
        """Hand clobbers to whoever listens. `call` is the backward call that met them, by default the one under way."""
        self.told += len(clobbers)
        if clobbers:
            if (call := call or self.here()) is not None:
                call.explained.extend(write.site for clobber in clobbers for write in clobber.writes)
            for listener in self.listeners:
                listener.clobbered(clobbers, error)


RECORDER = Recorder()
"""The one of this process: dispatch keys, hooks and patches are process-wide or thread-wide, never per watch."""
