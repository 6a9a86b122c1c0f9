"""Preserving once more where no write is seen any longer: a region is run anew after the block, or in a bare thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noclobber.model.error import ClobberError
from noclobber.model.report import Lost
from noclobber.observe.core import threads
from noclobber.observe.core.context import Context
from noclobber.observe.core.engine import listening


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


@contextmanager
def preserving(context: Context) -> Iterator[None]:
    """See and preserve in this thread; nothing where that is done anyway. Raises ClobberError where noclobber fails."""
    entered = context.thread.watched
    if context.keeping and entered:
        with listening(context):
            yield
        return
    silent = _Silent(contents=context.contents is not None or not context.watching)
    context.subscribe(silent)
    threads.enter(context)
    try:
        with listening(context):
            yield
    finally:
        if not entered:
            threads.leave(context)
        context.unsubscribe(silent)
    if silent.lost is not None:
        raise ClobberError(f"noclobber failed to keep what a checkpointed region needs: {silent.lost.why}")
