"""Preserves bytes also for a region that is recomputed after the block, or in a thread that is not watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noclobber.model.reports.error import ClobberError
from noclobber.model.reports.report import Lost
from noclobber.observe.core import threads
from noclobber.observe.core.context import Context
from noclobber.observe.core.engine import listening


class _Silent:
    """A listener that ignores what it hears."""

    watching = keeping = True
    everywhere = False
    account = allocations = None
    on_write = "record"

    def __init__(self, *, contents: bool) -> None:
        self.contents = contents
        self.lost: Lost | None = None

    def _ignored(self, *_: Any, **__: Any) -> None:
        """Ignored: what is about to be raised says it, or the program did not ask for it."""

    clobbered = kept = noticed = refused = checked = _ignored

    def failed(self, lost: Lost) -> None:
        """Keep the first failure. `preserving` raises it, as a gradient may be wrong otherwise."""
        self.lost = self.lost or lost


@contextmanager
def preserving(context: Context) -> Iterator[None]:
    """See and preserve in this thread, unless this is done already. Raises ClobberError if noclobber itself fails."""
    entered = context.thread.watched
    if context.keeping and entered:
        with listening(context):
            yield
        return
    silent = _Silent(contents=context.contents is not None or not context.watching)
    context.parts.subscribe(silent)
    threads.enter(context)
    try:
        with listening(context):
            yield
    finally:
        if not entered:
            threads.leave(context)
        context.parts.unsubscribe(silent)
    if silent.lost is not None:
        raise ClobberError(f"noclobber failed to keep what a checkpointed region needs: {silent.lost.why}")
