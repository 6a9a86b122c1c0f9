"""What goes to whoever listens: findings, refusals, copies and failures, each told at once; and what was not seen."""

from __future__ import annotations

import threading
from typing import Protocol

from noclobber.model.clobber import Clobber
from noclobber.model.events import Refusal
from noclobber.model.forks import unlocked_in_child
from noclobber.model.kept import Kept
from noclobber.model.report import Lost
from noclobber.model.silent import Event
from noclobber.observe.core.records import Backward, here


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


class Bus:
    """Of this process. Nothing is sent per save or per write: an event here is a finding, or nearly one."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.told = 0
        """Clobbers found so far."""
        self.unseen: dict[str, int] = {}
        """What was not seen, with how often, for the report's coverage."""
        self.lost: dict[Lost, int] = {}
        """What failed, with how often."""
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Take a new lock, which nobody holds."""
        self._counting = threading.RLock()  # what a garbage collection runs in its midst may come here too

    def tell(self, clobbers: list[Clobber], error: RuntimeError | None, call: Backward | None = None) -> None:
        """Hand clobbers to whoever listens. `call` is the backward call that met them, by default the one under way."""
        self.told += len(clobbers)
        if clobbers:
            if (call := call or here()) is not None:
                call.explained.extend(write.site for clobber in clobbers for write in clobber.writes)
            for listener in self.listeners:
                listener.clobbered(clobbers, error)

    def notice(self, event: Event) -> None:
        """Hand something else that went wrong to whoever listens."""
        for listener in self.listeners:
            listener.noticed(event)

    def refuse(self, error: RuntimeError, refusal: Refusal) -> None:
        """Tell of an operator that refuses to write."""
        for listener in self.listeners:
            listener.refused(error, refusal)

    def keep(self, kept: Kept) -> None:
        """Tell of bytes that were copied for a save before a write."""
        for listener in self.listeners:
            listener.kept(kept)

    def not_seen(self, what: str) -> None:
        """Count something for the report's coverage."""
        with self._counting:
            self.unseen[what] = self.unseen.get(what, 0) + 1

    def fail(self, lost: Lost) -> None:
        """A way of seeing is lost, or failed once. Says so, however often it does."""
        with self._counting:
            times = self.lost.get(lost, 0)
            self.lost[lost] = times + 1
        for listener in () if times else self.listeners:
            listener.failed(lost)

    def forget(self) -> None:
        """Begin anew with what was not seen, and what failed."""
        self.unseen, self.lost = {}, {}
