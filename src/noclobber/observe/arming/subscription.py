"""What the folders above ask of this one: to listen, what is covered, what an error is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from noclobber.model.reports.report import COMPILED, WITHOUT_BYTES, Coverage, unseen_in_words
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Drift
from noclobber.observe.arming import recorder
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core import threads
from noclobber.observe.core.context import Subscriber
from noclobber.observe.describe import refusals
from noclobber.observe.takers.overwritten_inputs import AskedInputs
from noclobber.observe.torch_api import releases
from noclobber.observe.torch_api.dispatch import compile_guard

subscribe = recorder.subscribe


def unsubscribe(one: Subscriber) -> Coverage:
    """Undo one `subscribe`. Return what was covered."""
    with recorder.changing:
        covered = CONTEXT.core.guarded(coverage) or Coverage("", False, lost=tuple(CONTEXT.bus.lost))
        recorder.unsubscribe(one)
    return covered


def coverage() -> Coverage:
    unread = CONTEXT.contents.unread if CONTEXT.contents is not None else 0
    counts = CONTEXT.bus.unseen.copy()
    if unread:
        counts[WITHOUT_BYTES] = unread
    if regions := compile_guard.FRAMES.not_seen():
        counts[COMPILED] = regions
    for one in recorder.listeners():
        counts.update(dict.fromkeys(one.allocations.unseen() if one.allocations is not None else (), 1))
    unseen = tuple(unseen_in_words(what, count) for what, count in counts.items())
    by = "dispatch key, native" if CONTEXT.native is not None else "dispatch key"
    notes, lost = releases.notes(), tuple(CONTEXT.bus.lost)
    return Coverage(by, CONTEXT.watching, CONTEXT.contents is not None, unseen, notes, lost)


def settle() -> None:
    """Watch as the listeners ask for now: one of them asks for more than before, or for less."""
    with recorder.changing:
        CONTEXT.core.guarded(recorder.settle)


def before_next_backward(function: Callable[[], object]) -> None:
    """Call a function before the next backward call begins."""
    CONTEXT.before_backward = function


def is_armed() -> bool:
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
