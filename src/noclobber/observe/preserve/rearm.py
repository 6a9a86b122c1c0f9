"""Preserving once more where no write is seen any longer: a region is run anew after the block, or in a bare thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from noclobber.model.error import ClobberError
from noclobber.model.report import Lost
from noclobber.observe.core.backward_calls import listening

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


class _Silent:
    """A listener that nobody asks what it heard."""

    watching = keeping = True
    on_write = "record"

    def __init__(self, *, contents: bool) -> None:
        self.contents = contents
        self.lost: Lost | None = None

    def clobbered(self, clobbers: Any, error: Any) -> None:
        """The error, where there is one, says it."""

    def kept(self, one: Any) -> None:
        """It is not the block that keeps this."""

    def noticed(self, event: Any) -> None:
        """The error that follows says it."""

    def refused(self, error: Any, refusal: Any) -> None:
        """PyTorch's own words are enough."""

    def failed(self, lost: Lost) -> None:
        """To be raised, as a number may be wrong otherwise."""
        self.lost = self.lost or lost


_subscription: list[Callable[[Any], Any]] = []
"""How to subscribe a listener and to end that: known once subscription.py, which needs all else, is imported."""


def subscribed_by(subscribe: Callable[[Any], Any], unsubscribe: Callable[[Any], Any]) -> None:
    """Say how a listener comes and goes."""
    _subscription[:] = [subscribe, unsubscribe]


@contextmanager
def preserving(recorder: Recorder) -> Iterator[None]:
    """See and preserve in this thread; nothing where that is done anyway. Raises ClobberError where noclobber fails."""
    entered = recorder.thread.watched
    if recorder.keeping and entered:
        with listening(recorder):
            yield
        return
    subscribe, unsubscribe = _subscription
    silent = _Silent(contents=recorder.contents is not None or not recorder.watching)
    subscribe(silent)
    recorder.enter()
    try:
        with listening(recorder):
            yield
    finally:
        if not entered:
            recorder.leave()
        unsubscribe(silent)
    if silent.lost is not None:
        raise ClobberError(f"noclobber failed to keep what a checkpointed region needs: {silent.lost.why}")
