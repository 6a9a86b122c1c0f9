"""The state of one thread. In PyTorch, sequence numbers, dispatch keys and hook stacks belong to a thread."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Any
from weakref import ref

from noclobber.model.seen.events import Step
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.torch_api.autograd import engine_state, hook_stack

HISTORY = 16_384
"""Places of past saves that are kept for graphs that were freed."""


class Thread(threading.local):
    """The state of the calling thread."""

    def __init__(self) -> None:
        self.saves: deque[tuple[int, Place | None]] = deque(maxlen=HISTORY)
        """The nodes of past saves, each with its place; newest last."""
        self.hooks: hook_stack.Pair | None = None
        """Noclobber's pair of hooks on this thread; None if there is none."""
        self.operators: AbstractContextManager[object] | None = None
        """The mode that sees every operator, if somebody asks for that."""
        self.entered = False
        self.apart = False
        """True while a trial of noclobber's own runs, which nobody watches."""
        self.blocks = 0
        """How many `watch`, `preserve` and `install` blocks this thread is in."""
        self.arming = 0
        """The number of the arming in which this thread was entered."""
        self.era = -1
        """The last `Context.era` in which saves of this thread were seen."""
        self.first_node = 0
        """The sequence number of the next autograd node when that era began here."""
        self.walked: set[tuple[int, ...]] = set()
        """The lines whose first backward call in that era had its graph looked through for saves that were not seen."""
        self.withdrawn: hook_stack.Pair | None = None
        """The pair of hooks that is off this thread's stack for now; None if none is."""
        self.step: Step | None = None
        self.stepped: frozenset[int | None] | None = None
        """The storages that this step may write, if it runs a closure; else None."""
        self.muted = False
        self.arguments = 0
        """The `id` of the arguments of the last step that has begun."""
        self.given: list[Any] = []
        """The forwards of custom Functions that are under way, innermost last (undeclared_writes.Forward)."""
        self.packed: deque[ref[Any]] = deque(maxlen=8)
        """The latest saves that other hooks than noclobber's packed (UserSave, RegionSave)."""
        self.again: list[Any] = []
        """The checkpointed regions that run again in this thread, innermost last (regions.py)."""
        self.preserving = 0
        """How many `_unsafe_preserve_version_counter` blocks this thread is in."""
        self.backwards: list[Backward] = []
        """The backward calls that this thread makes, innermost last."""
        self.boundary = 0
        """The sequence number at the end of the last backward: nodes below it belong to graphs that may be freed."""
        self.boundaries: dict[tuple[int, ...], tuple[Place | None, int]] = {}
        """The same number for each line that ran a backward, newest last; by the identity of its place."""

    @property
    def watched(self) -> bool:
        """Return True if this thread was entered, or works for a backward call of a thread that was.

        The engine gives its threads the dispatch keys and the hooks of the calling thread, including noclobber's.
        """
        return self.entered or engine_state.backward_call() is not None
