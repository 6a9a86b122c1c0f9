"""What is remembered for findings to come: recent writes, views and saves; bounded, and per thread where PyTorch is."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from noclobber.model.events import Step
from noclobber.observe import saves
from noclobber.observe.log import Record
from noclobber.observe.sites import Place
from noclobber.observe.writes import WriteMode

RECENT = 8192
"""Writes that met no live save of ours, kept to name the writer where PyTorch's own check, or a view, complains."""


class Thread(threading.local):
    """What belongs to one thread: sequence numbers, dispatch keys and hook stacks are per thread in PyTorch."""

    def __init__(self) -> None:
        self.history = saves.History()
        self.hooks: tuple[Any, Any] | None = None
        self.mode: WriteMode | None = None
        self.entered = False
        self.withdrawn = False
        self.step: Step | None = None
        self.muted = False
        self.preserving = 0
        """How many `_unsafe_preserve_version_counter` blocks this thread is in."""
        self.boundary = 0
        """The sequence number at the last finished backward: nodes below it belong to graphs that may be freed."""


class Memory:
    """Of this process."""

    def __init__(self) -> None:
        self.recent: deque[Record] = deque(maxlen=RECENT)
        self.views: deque[tuple[int, str, Place | None]] = deque(maxlen=RECENT)
        self.accumulated: deque[tuple[int, Place | None]] = deque(maxlen=RECENT)
        """Where `backward()` was called, with the number of the node that came next."""
        self.thread = Thread()

    def forget(self) -> None:
        """Drop what is not kept per thread."""
        self.recent.clear()
        self.views.clear()
        self.accumulated.clear()
