"""What all that watches shares in this process: flags, the live table, the history, the threads, the bus. Plain state.

Dispatch keys, hooks and patches are process-wide or thread-wide in PyTorch, never per `watch`, so there is one context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

import torch

from noclobber.model.forks import unlocked_in_child
from noclobber.model.live_saves import LiveSaves
from noclobber.observe.core.backward_calls import BackwardCalls
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.bus import Bus
from noclobber.observe.core.custom_backwards import CustomBackwards
from noclobber.observe.core.custom_forwards import CustomForwards
from noclobber.observe.core.fingerprints import Contents
from noclobber.observe.core.history import Memory
from noclobber.observe.core.records import Record
from noclobber.observe.core.save_hooks import Handle, Hooks
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.torch_api import private

State = TypeVar("State")
Look = Callable[[Written, torch.Tensor, int, FrameType], object]
"""Who wants to hear of every write: what is written, its storage's key, and the frame that it comes from."""
Meet = Callable[[list[Handle], torch.Tensor, Record], Callable[[], object] | None]
"""What happens when a write meets live saves of its storage; what it returns is to be called after the write."""


class UnseenWrites(Protocol):
    """Who looks at writes that autograd is kept from seeing (untracked_writes.py)."""

    @property
    def taken(self) -> Collection[Any]:
        """The tensors whose `.data` was taken last; the same object for good."""

    def data_taken(self, tensor: torch.Tensor) -> None:
        """Somebody reads `tensor.data`."""

    def before(
        self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType
    ) -> tuple[Callable[[], object], bool] | None:
        """A write under `no_grad`, or after a `.data`, is about to happen; what to call after it, and whether it goes
        to a computed tensor, and not to a leaf."""

    def assigned(self, noted: Record, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """A tensor is about to be given the data of another."""


class Context:
    """Imports nothing that watches: what is decided elsewhere is set by the recorder, above `__init__`."""

    __slots__ = (
        "__weakref__",
        "_attending",
        "_counting",
        "_states",
        "armed",
        "armings",
        "attentive",
        "bus",
        "by_key",
        "calls",
        "careful",
        "contents",
        "core",
        "customs",
        "entered",
        "forwards",
        "keeping",
        "live",
        "make_hooks",
        "meet",
        "memory",
        "put_off",
        "python_in_backward",
        "stop_writes",
        "subscribe",
        "thread",
        "unsubscribe",
        "untracked",
        "watching",
    )

    meet: Meet
    make_hooks: Callable[[tuple[Any, Any] | None], Hooks]
    """The hooks of a thread, which are to call the program's pair below them, if there is one."""
    untracked: UnseenWrites
    subscribe: Callable[[Any], object]
    """Begins to watch for a listener that says how much it needs (subscription.py); `unsubscribe` ends that."""
    unsubscribe: Callable[[Any], object]

    def __init__(self) -> None:
        self.bus = Bus()
        self.armed = self.watching = False
        """`watching` adds the save registry to the write log."""
        self.contents: Contents | None = None
        """How fingerprints are taken, where the bytes of saves are compared."""
        self.stop_writes = False
        self.keeping = False
        """Whether the bytes that backward still needs are kept before a write changes them."""
        self.careful = 0
        """More than 0 where writes to tensors in the graph must be looked at too: to stop them, or as versions lie."""
        self.put_off: set[Handle] = set()
        """Saves of bytes that are out of their memory for the moment, and will be back (reruns.py)."""
        self.attentive: list[Look] = []
        """Who wants to hear of every write for the moment; each once."""
        self._attending: dict[Look, int] = {}
        self.by_key = True
        self.python_in_backward = False
        """Whether hooks may run there: else the engine's own writes, which reach gradients only, go unlogged."""
        self.live: LiveSaves[Handle] = LiveSaves(private.storage_key)
        self.memory = Memory()
        self.thread = self.memory.thread
        self.calls = BackwardCalls()
        self.customs = CustomBackwards()
        self.forwards = CustomForwards()
        self.core = Way("", self.bus.fail, lasting=True)
        """What everything else stands on. A failure there costs no more than the save, write or call that failed."""
        self.entered = 0
        """Threads that are watched."""
        self.armings = 0
        self._states: dict[Any, Any] = {}
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""
        self._counting = threading.RLock()  # what a garbage collection runs in its midst may come here too

    def state(self, kind: Callable[[Context], State]) -> State:
        """What a detector remembers, made when it is first asked for. A change of mode leaves it; `forget` does not."""
        if kind not in self._states:
            self._states[kind] = kind(self)
        return cast(State, self._states[kind])

    def forget(self) -> None:
        """Drop all that was seen."""
        self.memory.forget()
        self.bus.forget()
        self._states.clear()

    @property
    def strict(self) -> bool:
        """Whether a changed save raises where PyTorch is silent, as it could neither be stopped nor kept."""
        return self.stop_writes or self.keeping

    @property
    def is_alone(self) -> bool:
        """Whether only one thread is watched."""
        return self.entered == 1

    def count_threads(self, more: int) -> None:
        """One thread more (1) is watched, or one less (-1)."""
        with self._counting:
            self.entered += more

    def be_careful(self, more: int) -> None:
        """One more reason (1) to look at writes to tensors in the graph too, or one less (-1)."""
        with self._counting:
            self.careful += more

    def attend(self, look: Look) -> None:
        """Tell `look` of every write, from any thread, until it is ignored as often."""
        with self._counting:
            self._attending[look] = count = self._attending.get(look, 0) + 1
            if count == 1:
                self.attentive.append(look)

    def ignore(self, look: Look) -> None:
        """Tell `look` of writes no more."""
        with self._counting:
            count = self._attending.pop(look, 0)
            if count > 1:
                self._attending[look] = count - 1
            elif count:
                self.attentive.remove(look)

    def ignore_all(self) -> None:
        """Tell nobody of writes any more."""
        self.attentive.clear()
        self._attending.clear()
