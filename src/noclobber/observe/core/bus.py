"""Findings, refusals, copies and failures, for whoever listens. It also counts what was not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from noclobber.model.forks import lock
from noclobber.model.reports.error import ClobberError
from noclobber.model.reports.kept import Kept
from noclobber.model.reports.report import Lost
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Event
from noclobber.observe.core.calls import End
from noclobber.observe.core.seen.records import Backward, here


class Listener(Protocol):
    """Called for each event at once, before the program goes on."""

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Called when a changed save is read, or a write is stopped.

        `error` is what the program is about to get, None where PyTorch stays silent.
        """

    def kept(self, one: Kept) -> None:
        """Called when the bytes of a save were copied before a write, in order to preserve them."""

    def noticed(self, event: Event) -> None:
        """Called when something went wrong silently that is not a clobber of a save."""

    def refused(self, error: RuntimeError, refusal: Refusal) -> None:
        """Called when an operator refuses to write. The program may still catch the error."""

    def failed(self, lost: Lost) -> None:
        """Called when noclobber itself failed, and the program goes on."""

    def checked(self, *, raised: bool) -> None:
        """Called when a backward call whose saves were seen has ended, with an error if it `raised`."""


class Bus:
    """The one bus of this process. It carries findings and little else, and nothing per save or per write."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.told = 0
        """The number of clobbers found so far."""
        self.unseen: dict[str, int] = {}
        """How often each thing was not seen, for the report's coverage."""
        self.lost: dict[Lost, int] = {}
        """How often each failure happened."""
        self._counting = lock()

    def tell(self, clobbers: list[Clobber], error: RuntimeError | None, call: Backward | None = None) -> None:
        """Report clobbers to the listeners. `call` is the backward call that read them, None the one under way."""
        self.told += len(clobbers)
        if clobbers:
            if (call := call or here()) is not None:
                call.explained.extend(write.site for clobber in clobbers for write in clobber.writes)
            for listener in self.listeners:
                listener.clobbered(clobbers, error)

    def notice(self, event: Event) -> None:
        for listener in self.listeners:
            listener.noticed(event)

    def at_end(self, events: Sequence[Event]) -> End | None:
        """Return what reports these events at the end of a backward call; None without any.

        A call that fails for another reason reports none. One that stopped at an overwritten save does: the same write
        may have caused both.
        """

        def ended(result: object, error: BaseException | None) -> None:
            for event in events if error is None or isinstance(error, ClobberError) else ():
                self.notice(event)

        return ended if events else None

    def refuse(self, error: RuntimeError, refusal: Refusal) -> None:
        for listener in self.listeners:
            listener.refused(error, refusal)

    def keep(self, kept: Kept) -> None:
        for listener in self.listeners:
            listener.kept(kept)

    def check(self, *, raised: bool) -> None:
        """Report that a backward call has ended whose saves were seen."""
        for listener in self.listeners:
            listener.checked(raised=raised)

    def not_seen(self, what: str) -> None:
        """Count something that was not seen, for the report's coverage."""
        with self._counting:
            self.unseen[what] = self.unseen.get(what, 0) + 1

    def fail(self, lost: Lost) -> None:
        """Record that a way of seeing is lost, or failed once. Listeners are told only the first time."""
        with self._counting:
            times = self.lost.get(lost, 0)
            self.lost[lost] = times + 1
        for listener in () if times else self.listeners:
            listener.failed(lost)

    def forget(self) -> None:
        self.unseen, self.lost = {}, {}
