"""Who wants to see what: arms the recorder for the first listener, disarms it after the last."""

from __future__ import annotations

import sys
from typing import Protocol

from noclobber.model.clobber import Clobber
from noclobber.model.events import Refusal
from noclobber.model.report import Coverage
from noclobber.observe import afterwards, refusals, releases
from noclobber.observe.recorder import RECORDER, Listener


class Subscriber(Listener, Protocol):
    """A listener that says how much it needs."""

    @property
    def watching(self) -> bool:
        """Whether saves are wanted, not only writes."""

    @property
    def contents(self) -> bool:
        """Whether the bytes of saves are to be compared as well as their versions."""

    @property
    def keeping(self) -> bool:
        """Whether the bytes that backward needs are to be kept before a write changes them."""

    @property
    def on_write(self) -> str:
        """ "raise" to stop writes to live saves."""


_subscribers: list[Subscriber] = []


def subscribe(one: Subscriber) -> None:
    """Send events to a listener from now on."""
    _subscribers.append(one)
    _settle()


def unsubscribe(one: Subscriber) -> Coverage:
    """Stop; returns what was covered."""
    covered = coverage()
    _subscribers.remove(one)
    _settle()
    return covered


afterwards.subscribed_by(subscribe, unsubscribe)


def _settle() -> None:
    watching = any(one.watching for one in _subscribers)
    contents = watching and any(one.contents for one in _subscribers)
    keeping = any(one.keeping for one in _subscribers)
    armed = (RECORDER.watching, RECORDER.contents is not None)
    if RECORDER.listeners and (not _subscribers or armed != (watching, contents)):
        RECORDER.disarm(forget=not _subscribers)
        RECORDER.listeners = []
    if _subscribers and not RECORDER.listeners:
        try:
            RECORDER.arm(watching=watching, contents=contents)
        except RuntimeError:
            _subscribers.clear()
            raise
    RECORDER.listeners = list(_subscribers)
    RECORDER.keep(keeping)
    RECORDER.stop(any(one.on_write == "raise" for one in _subscribers))


def coverage() -> Coverage:
    """What is seen at present."""
    unread = RECORDER.contents.unread if RECORDER.contents is not None else 0
    counts = dict(RECORDER.unseen)
    if unread:
        counts["the bytes of saves that have none to read (meta, sparse, subclasses)"] = unread
    if regions := _compiled():
        counts["the inside of compiled regions"] = regions
    unseen = tuple(f"{what} ({count} times)" if count > 1 else what for what, count in counts.items())
    by, contents = "dispatch key" if RECORDER.by_key else "dispatch mode", RECORDER.contents is not None
    return Coverage(by, RECORDER.watching, contents, unseen, releases.notes())


def _compiled() -> int:
    """How many frames torch.compile has compiled in this process; what runs in them dispatches no operators."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("frames", {}).get("ok", 0))


def event_of(error: BaseException) -> Refusal | Clobber | None:
    """What an exception is about, if it may concern writing in place."""
    return refusals.refusal_of(error, RECORDER.memory)
