"""What belongs to one thread, as sequence numbers, dispatch keys and hook stacks do in PyTorch."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol
from weakref import ref

from noclobber.model.events import Step
from noclobber.observe.core.fingerprints import Digest
from noclobber.observe.core.records import Backward
from noclobber.observe.core.save_hooks import History
from noclobber.observe.core.sites import Place
from noclobber.observe.core.write_kernels import WriteMode
from noclobber.observe.torch_api import private


class PackedSave(Protocol):
    """A save that hooks other than noclobber's have: its memory, the number of its node, its fingerprint."""

    key: int | None
    node: int
    digest: Digest
    filled_last: bool

    @property
    def is_copy(self) -> bool:
        """Whether backward reads a copy that was made when it was saved."""


class Thread(threading.local):
    """What belongs to one thread: sequence numbers, dispatch keys and hook stacks are per thread in PyTorch."""

    def __init__(self) -> None:
        self.history = History()
        self.hooks: tuple[Any, Any] | None = None
        self.mode: WriteMode | None = None
        self.entered = False
        self.blocks = 0
        """How many `watch`, `preserve` and `install` blocks this thread has begun; 1 more where it was begun in one."""
        self.arming = 0
        """What number the arming had that this thread was entered in."""
        self.withdrawn: tuple[Any, Any] | None = None
        """The pair of hooks that was taken off this thread's stack for a while."""
        self.step: Step | None = None
        self.muted = False
        self.given: list[list[Any]] = []
        """What the custom Functions whose forward is under way were given, innermost last (undeclared_writes.py)."""
        self.packed: deque[ref[PackedSave]] = deque(maxlen=8)
        """The last saves that hooks other than noclobber's were given."""
        self.preserving = 0
        """How many `_unsafe_preserve_version_counter` blocks this thread is in."""
        self.backwards: list[Backward] = []
        """The backward calls that this thread makes, innermost last."""
        self.boundary = 0
        """The sequence number at the last finished backward: nodes below it belong to graphs that may be freed."""
        self.boundaries: dict[Place | None, int] = {}
        """The same for each line that ran a backward, the last to do so last."""

    @property
    def watched(self) -> bool:
        """Whether this thread was entered, or works for a backward call of one that was: the engine gives its threads
        the dispatch keys and the hooks of the calling thread, and noclobber's with them."""
        return self.entered or private.backward_call() is not None
