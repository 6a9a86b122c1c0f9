"""The listeners and what each needs: arms the recorder for the first listener, and disarms it after the last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from noclobber.model.clobber import Clobber
from noclobber.model.error import UnsupportedTorch
from noclobber.model.events import Refusal
from noclobber.model.report import COMPILED, WITHOUT_BYTES, Coverage, unseen_in_words
from noclobber.model.silent import Drift
from noclobber.observe import recorder
from noclobber.observe.core import boundary, threads
from noclobber.observe.core.context import Subscriber
from noclobber.observe.describe import refusals
from noclobber.observe.detectors.overwritten_inputs import AskedInputs
from noclobber.observe.recorder import CONTEXT
from noclobber.observe.torch_api import compile_guard, releases

_subscribers: list[Subscriber] = []
"""A listener stands here once for each block in which it listens."""


_changing = threading.RLock()


def subscribe(one: Subscriber) -> None:
    """Send events to a listener from now on, each once, and watch the calling thread.

    Raises UnsupportedTorch if noclobber cannot watch.
    """
    with _changing:
        _subscribers.append(one)
        try:
            _settle()
            threads.begin_block(CONTEXT)
        except Exception as failure:
            _subscribers.remove(one)
            CONTEXT.core.guarded(_settle)
            if isinstance(failure, UnsupportedTorch):
                raise
            raise UnsupportedTorch(f"noclobber cannot watch: {boundary.lost('', failure).why}") from failure


def unsubscribe(one: Subscriber) -> Coverage:
    """Undo one `subscribe`. Return what was covered."""
    with _changing:
        guarded = CONTEXT.core.guarded
        covered = guarded(coverage) or Coverage("", False, lost=tuple(CONTEXT.bus.lost))
        _subscribers.remove(one)
        guarded(lambda: threads.end_block(CONTEXT))
        guarded(_settle)
    return covered


CONTEXT.subscribe, CONTEXT.unsubscribe = subscribe, unsubscribe


def _settle() -> None:
    listeners = list(dict.fromkeys(_subscribers))
    watching = any(one.watching for one in listeners)
    contents = watching and any(one.contents for one in listeners)
    keeping = any(one.keeping for one in listeners)
    only_foreign = not any(one.contents and not one.keeping for one in listeners)
    known = CONTEXT.contents
    as_it_is = contents == (known is not None) and (known is None or known.only_foreign == only_foreign)
    if CONTEXT.armed and (not listeners or watching != CONTEXT.watching or not as_it_is):
        CONTEXT.bus.listeners = []
        recorder.detach(forget=not listeners)
    if listeners and not CONTEXT.armed:
        recorder.attach(watching=watching, contents=contents, only_foreign=only_foreign)
    CONTEXT.bus.listeners = [*listeners]
    CONTEXT.everywhere = any(one.everywhere for one in listeners)
    recorder.keep(keeping)
    recorder.count([one.account for one in listeners if one.account is not None])
    recorder.follow([one.allocations for one in listeners if one.allocations is not None])
    recorder.stop(any(one.on_write == "raise" for one in listeners))


def coverage() -> Coverage:
    """Return what is covered at present."""
    unread = CONTEXT.contents.unread if CONTEXT.contents is not None else 0
    counts = CONTEXT.bus.unseen.copy()
    if unread:
        counts[WITHOUT_BYTES] = unread
    if regions := compile_guard.FRAMES.not_seen():
        counts[COMPILED] = regions
    for one in dict.fromkeys(_subscribers):
        counts.update(dict.fromkeys(one.allocations.unseen() if one.allocations is not None else (), 1))
    unseen = tuple(unseen_in_words(what, count) for what, count in counts.items())
    by, contents = "dispatch key" if CONTEXT.by_key else "dispatch mode", CONTEXT.contents is not None
    if CONTEXT.native is not None:
        by += ", native"
    return Coverage(by, CONTEXT.watching, contents, unseen, releases.notes(), tuple(CONTEXT.bus.lost))


def settle() -> None:
    """Watch as the listeners ask for now: one of them asks for more than before, or for less."""
    with _changing:
        CONTEXT.core.guarded(_settle)


def before_next_backward(function: Callable[[], object]) -> None:
    """Call a function before the next backward call begins. It may unsubscribe: then nobody watches that call."""
    CONTEXT.before_backward = function


def is_armed() -> bool:
    """Return True while anything is watched."""
    return CONTEXT.armed


def apart() -> AbstractContextManager[None]:
    """Run a block of this thread unwatched: a trial of noclobber's own."""
    return threads.apart(CONTEXT)


def begin_again() -> None:
    """Drop what was counted until now: in a forked child."""
    CONTEXT.bus.forget()


def event_of(error: BaseException) -> Refusal | Clobber | Drift | None:
    """Return what an exception is about, if it may concern writing in place; else None."""
    return refusals.refusal_of(error, CONTEXT.memory)


def overwritten_by(asked: object, inputs: Sequence[object]) -> int | None:
    """Return the number of the node of the write after which a gradient with respect to `asked` is not what the program
    asks for (NC209); None if there is none. `inputs` are all the tensors that it asks gradients for."""
    noted = CONTEXT.state(AskedInputs).write_to(asked, inputs)
    return None if noted is None else noted.node
