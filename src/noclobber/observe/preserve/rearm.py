"""Preserves bytes also for a region that is recomputed after the block, or in a thread that is not watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from noclobber.model.clobber import Clobber
from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.model.kept import Kept
from noclobber.model.report import Lost
from noclobber.model.silent import Event
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

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """Ignored: the error says it, if there is one."""

    def kept(self, one: Kept) -> None:
        """Ignored: the copy is not made for a block of the program."""

    def noticed(self, event: Event) -> None:
        """Ignored: the error that follows says it."""

    def refused(self, error: RuntimeError, refusal: Refusal) -> None:
        """Ignored: PyTorch's own error says it."""

    def checked(self, *, raised: bool) -> None:
        """Ignored: `preserving` is no block of the program."""

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
