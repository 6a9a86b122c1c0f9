"""The plain state that all watchers of this process share: flags, live table, history, threads, bus.

Dispatch keys, hooks and patches belong to a process or a thread in PyTorch, never to a `watch`: there is one context.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch

from noclobber.model.forks import lock
from noclobber.model.source import Site
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.bus import Bus, Listener
from noclobber.observe.core.calls import ALWAYS, BackwardCalls, CustomBackwards, CustomForwards
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.hot_path import HotPath
from noclobber.observe.core.seen.records import Backward, Record
from noclobber.observe.core.seen.written import Written
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.witness.digests import Contents, Digest

State = TypeVar("State")
IN_GRAPH = 0
"""In place of the key of a storage: all writes to tensors that require a gradient."""
After = Callable[[], object]
"""Called after a write."""
Look = Callable[[Written, torch.Tensor, int, FrameType], After | None]
"""Called before every write: with what is written, the key of its storage, and the frame that the write comes from.
Returns what to call after it, None for nothing."""


class UnseenWrites(Protocol):
    """The watcher of writes that autograd cannot see (untracked_writes.py)."""

    def taken_out(self, tensor: torch.Tensor, key: int, how: Literal["data", "detached"]) -> None:
        """Called when the program takes an alias outside of the graph, by `.data` or `.detach()`, of a tensor that
        requires grad, on the storage with this key."""

    def before(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> tuple[After, bool] | None:
        """Called before a write under `no_grad`, and before one to an attended storage.

        Returns what to call after the write, and True if it goes to a computed tensor and not to a leaf; None where
        there is nothing to do.
        """

    def emptied(self, storage: torch.UntypedStorage) -> None:
        """Called after the program freed the memory of a storage: what it writes there later overwrites nothing."""

    def assigned(self, noted: Record, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Called before a tensor gets the data of another (`tensor.data = value`)."""

    def handed_out(self, tensor: torch.Tensor, key: int, by: str, frame: FrameType) -> None:
        """Called after code outside of torch got the memory of a tensor, by a call such as `numpy()`."""

    def saved(self, alias: torch.Tensor, key: int, site: Site | None) -> None:
        """Called after a save of memory that code outside of torch once got."""


class Account(Protocol):
    """What counts the bytes that saves keep (memory/saved_bytes.py)."""

    def saved(self, handle: Handle, frame: FrameType) -> None:
        """Called after each save, with the frame that made it."""

    def begins(self, call: Backward) -> None:
        """Called when a backward call begins."""


class Operators(Protocol):
    """What is told of every operator (memory/allocations.py)."""

    def before(self, context: Context, func: Any, args: tuple[Any, ...], frame: FrameType) -> None:
        """Called before an operator runs, with the innermost frame of Python that asked for it."""

    def after(
        self,
        context: Context,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
        frame: FrameType,
    ) -> None:
        """Called with what the operator returned."""

    def enter(self, context: Context) -> AbstractContextManager[object]:
        """Begin to follow the operators of the calling thread, for all who follow them, and return what ends that."""

    def handed(self, key: int) -> None:
        """Called when code outside of torch gets the memory of a storage."""

    def unseen(self) -> list[str]:
        """Return in words what was not followed, or not as it is without noclobber."""


class Subscriber(Listener, Protocol):
    """A listener that says what it needs."""

    watching: bool
    """Whether saves are watched too, and not only writes."""
    contents: bool
    """Whether the bytes of saves are compared too, and not only their versions."""
    keeping: bool
    """Whether the bytes that backward needs are preserved before a write changes them."""
    everywhere: bool
    """Whether threads that ran before are watched too, from their first backward call on."""

    @property
    def account(self) -> Account | None:
        """What counts the bytes of saves for this listener, if it asks for that."""

    @property
    def allocations(self) -> Operators | None:
        """What follows every operator for this listener, if it asks for that."""

    @property
    def on_write(self) -> str:
        """ "raise" stops writes to live saves."""


def _count_less(looks: dict[Look, int], look: Look) -> None:
    if (left := looks.get(look, 0) - 1) > 0:
        looks[look] = left
    else:
        looks.pop(look, None)


class Parts(NamedTuple):
    """What core/ asks of the folders above it. All get the context first, which is made with them."""

    meet: Callable[[Context, list[Handle], torch.Tensor, Record], After | None]
    """Called before a write that meets live saves. Returns what to call after the write, None for nothing."""
    detached: Callable[[Context, torch.Tensor], bool]
    """Called before a tensor is detached in place. Returns True."""
    detached_by_number: Callable[[Context, torch.Tensor], None]
    """Called instead where that has failed."""
    read: Callable[[Context, Handle, Digest, bool], torch.Tensor | None]
    """Returns the tensor of a save that may have changed; None where PyTorch decides. The flag says that the save was
    made where bytes were preserved."""
    around: Callable[[Context, hook_stack.Pair], hook_stack.Pair]
    """Returns hooks of noclobber's that call a pair of the program's."""
    look: Callable[[Context, list[Handle], torch.Tensor, Record], None]
    """Called before a write to a storage that has live saves: notes who holds the memory."""
    refused: Callable[[Context, Written, tuple[object, ...], dict[str, object], RuntimeError], None]
    """Called when an operator that writes has raised."""
    overlaps: Callable[[Context, Written, tuple[object, ...], dict[str, object]], After | None]
    """Called before an operator, where bytes are preserved: it may save what it overwrites through another argument."""
    untracked: Callable[[Context], UnseenWrites]
    """Makes the watcher of writes that autograd cannot see."""
    subscribe: Callable[[Subscriber], object]
    """Begins to watch for a listener, which says how much it needs; `unsubscribe` ends that."""
    unsubscribe: Callable[[Subscriber], object]


class Context:
    """The shared state. It imports no watcher: it is made with its `parts`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.bus = Bus()
        self.armed = self.watching = False
        """`armed` is True while writes are logged, `watching` while saves are recorded too."""
        self.before_backward: Callable[[], object] | None = None
        """Called once, before the next backward call that is not inside of another one."""
        self.contents: Contents | None = None
        """Takes the fingerprints; None where the bytes of saves are not compared."""
        self.takers: list[tuple[Collection[object], Callable[[Handle, torch.Tensor], object]]] = []
        """Those to call after each save, in this order, each with what must not be empty for it to be called. It is
        always the same object, so callers may keep it."""
        self.accounts: list[Account] = []
        """Those that count the bytes of saves; empty most of the time."""
        self.allocations: list[Operators] = []
        """Those that follow every operator; empty most of the time."""
        self.everywhere = False
        """True where threads that ran before watching began are watched from their first backward call on."""
        self.stop_writes = False
        self.keeping = False
        """True where the bytes that backward still needs are kept before a write changes them."""
        self.careful = 0
        """More than 0 where writes to tensors in the graph must be checked too: to stop them, or as versions lie."""
        self.put_off: set[Handle] = set()
        """Saves whose bytes are not in their memory for the moment, but will be put back (forward_bytes.py)."""
        self.attentive: dict[Look, int] = {}
        """Those to call before every write at the moment, each once, and for how many reasons. It is always the same
        object, so callers may keep it."""
        self.attended: dict[int, dict[Look, int]] = {}
        """The same of those to call before the writes to one storage, by its key or IN_GRAPH."""
        self.unseen: list[Look] = []
        """Those to call before every write that autograd does not see. It is always the same object."""
        self.python_in_backward = False
        """True where hooks may run in backward. Otherwise the engine's own writes, which reach only gradients, are not
        logged."""
        self.native: HotPath | None = None
        """The native part while it takes writes and saves; else None."""
        self.memory = Memory()
        self.live = self.memory.live
        self.thread = self.memory.thread
        self.calls = BackwardCalls()
        self.customs: CustomBackwards = CustomBackwards(None)
        self.forwards = CustomForwards()
        self.core = Way("", self.bus.fail, lasting=True)
        """The way that everything else needs. A failure in it loses only the save, write or call that failed."""
        self.entered = 0
        """The number of threads that are watched."""
        self.armings = 0
        self.era = 0
        """How often noclobber has stopped seeing saves."""
        self._states: dict[object, Any] = {}
        self._counting = lock()

    def state(self, kind: Callable[[Context], State]) -> State:
        """Return what a detector remembers, made on the first call. It outlives a change of mode, but not `forget`."""
        if kind not in self._states:
            self._states[kind] = kind(self)
        state: State = self._states[kind]
        return state

    @property
    def untracked(self) -> UnseenWrites:
        return self.state(self.parts.untracked)

    def take_saves(
        self, way: Way, saved: Callable[[Handle, torch.Tensor], object], among: Collection[object] = ALWAYS
    ) -> None:
        """Call `saved` after each save while there is anything in `among`, until the way is taken off."""
        way.add(self.takers, (among, way.entry(saved)))

    def forget(self) -> None:
        self.memory.forget()
        self.bus.forget()
        self._states.clear()

    @property
    def strict(self) -> bool:
        """True if a changed save raises where PyTorch is silent, as nothing stopped the write or kept the bytes."""
        return self.stop_writes or self.keeping

    @property
    def is_alone(self) -> bool:
        """True if exactly one thread is watched."""
        return self.entered == 1

    def count_threads(self, more: int) -> None:
        """Count one more watched thread (1) or one less (-1)."""
        with self._counting:
            self.entered += more

    def be_careful(self, more: int) -> None:
        """Count one more reason (1) to check writes to tensors in the graph too, or one less (-1)."""
        with self._counting:
            self.careful += more
            if self.native is not None:
                self.native.set_careful(self.careful > 0)

    def attend(self, look: Look, keys: Sequence[int] | None = None) -> None:
        """Call `look` before every write of any thread, until `ignore` was called as often as this.

        With keys of storages, or IN_GRAPH, it is called before the writes to these: all others stay in the native part.
        So do those of the engine itself in a backward.
        """
        with self._counting:
            for looks in (self.attentive,) if keys is None else [self.attended.setdefault(key, {}) for key in keys]:
                looks[look] = looks.get(look, 0) + 1

    def ignore(self, look: Look, keys: Sequence[int] | None = None) -> None:
        """Undo one `attend`."""
        with self._counting:
            if keys is None:
                _count_less(self.attentive, look)
            for key in keys or ():
                _count_less(looks := self.attended.get(key, {}), look)
                if not looks:
                    self.attended.pop(key, None)

    def ignore_all(self) -> None:
        self.attentive.clear()
        self.attended.clear()
