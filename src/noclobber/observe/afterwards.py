"""Preserving once more where no write is seen any longer: a region is run anew after the block, or in a bare thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


class _Silent:
    """A listener that nobody asks what it heard."""

    watching = keeping = True
    on_write = "record"

    def __init__(self, *, contents: bool) -> None:
        self.contents = contents
        self.failure: Exception | None = None

    def clobbered(self, clobbers: Any, error: Any) -> None:
        """The error, where there is one, says it."""

    def kept(self, one: Any) -> None:
        """It is not the block that keeps this."""

    def noticed(self, event: Any) -> None:
        """The error that follows says it."""

    def refused(self, error: Any, refusal: Any) -> None:
        """PyTorch's own words are enough."""

    def failed(self, failure: Exception) -> None:
        """To be raised, as a number may be wrong otherwise."""
        self.failure = self.failure or failure


_subscription: list[Callable[[Any], Any]] = []
"""How to subscribe a listener and to end that: known once subscription.py, which needs all else, is imported."""


def subscribed_by(subscribe: Callable[[Any], Any], unsubscribe: Callable[[Any], Any]) -> None:
    """Say how a listener comes and goes."""
    _subscription[:] = [subscribe, unsubscribe]


@contextmanager
def preserving(recorder: Recorder) -> Iterator[None]:
    """See and preserve in this thread; nothing where that is done anyway. Raises what noclobber itself failed with."""
    entered = recorder.thread.entered
    if recorder.keeping and entered:
        with recorder.listening():
            yield
        return
    subscribe, unsubscribe = _subscription
    silent = _Silent(contents=recorder.contents is not None or not recorder.watching)
    subscribe(silent)
    recorder.enter()
    try:
        with recorder.listening():
            yield
    finally:
        if not entered:
            recorder.leave()
        unsubscribe(silent)
    if silent.failure is not None:
        raise silent.failure
