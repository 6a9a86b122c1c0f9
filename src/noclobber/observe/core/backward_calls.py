"""Backward calls: the one wrapper of the engine. It reads the engine's arguments once, and tells who watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.observe.core import optimizer_steps
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.records import Backward, moment
from noclobber.observe.core.sites import place_of
from noclobber.observe.describe import clobbers, refusals, torch_messages
from noclobber.observe.detectors import changed_saves
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.torch_api import graph, private

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder

_LINES = 64
"""Lines that ran a backward, of which it is known when they last did."""
End = Callable[[Any, BaseException | None], None]
"""Called when a backward call has ended, with what it returned, or with what it raised."""
Begin = Callable[[Backward], End | None]
"""Called when a backward call is about to begin."""


class BackwardCalls:
    """Who hears of backward calls."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin]] = []

    def watch(self, way: Way, begin: Begin) -> None:
        """Tell `begin` of every call, until the way is taken off."""
        entry = (way, begin)
        self._watching.append(entry)
        way.at_end(lambda: self._watching.remove(entry))

    def begin(self, call: Backward) -> list[tuple[Way, End]]:
        """A call begins; gives who wants to hear of its end."""
        ends = [(way, way.guarded(partial(begin, call))) for way, begin in tuple(self._watching)]
        return [(way, end) for way, end in ends if end is not None]


def read(outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Backward:
    """The engine's arguments, as `torch.autograd.backward` and `grad` pass them (torch 2.13; self_tests.py tries it).

    They are (outputs, gradients, retain_graph, create_graph, inputs), and `accumulate_grad` by its name.
    """
    gradients, _, create_graph, inputs = (*args, *(None,) * 4)[:4]
    call = "backward" if kwargs.get("accumulate_grad") else "grad"
    return Backward(
        place_of(sys._getframe(1)), outputs, call, gradients or (), inputs or (), create_graph=bool(create_graph)
    )


def arm(recorder: Recorder, way: Way) -> None:
    """Be there at every backward call of a thread that is watched."""
    engine = private.engine()

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch's own name for it: whoever walks the stack knows the engine by that.
        begun = way.guarded(lambda: _begins(recorder, t_outputs, args, kwargs))
        if begun is None:
            return engine(t_outputs, *args, **kwargs)
        call, ended = begun
        # No variable of this frame: a frame that holds itself keeps all others until a garbage collection.
        call.frame = sys._getframe()
        try:
            result = engine(t_outputs, *args, **kwargs)
        except BaseException as error:
            call.over = True  # whatever fails now
            way.guarded(partial(ended, None, error))
            raise
        call.over = True
        way.guarded(partial(ended, result, None))
        return result

    way.patches.put(torch.autograd, "_engine_run_backward", _engine_run_backward)


def _begins(
    recorder: Recorder, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Backward, End] | None:
    """A backward call is about to begin in this thread: the call, and what is to be called at its end."""
    thread = recorder.thread
    outer = recorder.here() if thread.backwards or not thread.entered else None
    if not recorder.listeners:
        return None
    if thread.entered:
        recorder.enter()
    elif outer is None:
        recorder.not_seen("backward calls in threads that ran before watching began")
        return None
    optimizer_steps.unmute(thread)
    call = read(outputs, args, kwargs)
    call.outer, call.node = outer, private.next_node()
    ends = recorder.calls.begin(call)  # who may find hooks, which are to be listened to
    logged = recorder.by_key and not recorder.python_in_backward and private.key_is_set()
    call.quiet = logged and copy_before_write.log_may_rest(recorder, outputs, call.create_graph)
    if recorder.contents is not None:
        recorder.contents.begin(sharing=call.quiet and recorder.is_alone)
    try:
        thread.backwards.append(call)
        private.set_backward_call(call)
        if call.quiet:
            private.set_key(False)
    except Exception:
        call.over = True  # it goes on without us
        raise
    return call, partial(_has_ended, recorder, call, ends)


def _has_ended(
    recorder: Recorder, call: Backward, ends: list[tuple[Way, End]], result: Any, error: BaseException | None
) -> None:
    stopped = recorder.core.guarded(partial(changed_saves.settle, recorder, call)) if call.later else None
    thread, call.frame = recorder.thread, None
    if call.quiet and thread.watched:
        private.set_key(True)
    thread.backwards.remove(call)
    private.set_backward_call(call.outer)
    if recorder.contents is not None:
        recorder.contents.begin(sharing=False)
    for way, end in reversed(ends):
        way.entry(end, also_off=True)(result, error)
    if error is not None:
        if isinstance(error, RuntimeError):
            _has_failed(recorder, call, error)
        return
    thread.boundary = private.next_node()
    thread.boundaries.pop(call.place, None)
    thread.boundaries[call.place] = thread.boundary
    if len(thread.boundaries) > _LINES:
        del thread.boundaries[next(iter(thread.boundaries))]
    if call.call == "backward":
        recorder.memory.accumulated.append((moment(), call.place))
    if stopped is not None:
        raise stopped


def _has_failed(recorder: Recorder, call: Backward, error: RuntimeError) -> None:
    """An error leaves a backward call: find the other stale saves of its graph, or what was freed."""
    event, message = refusals.remembered(error), str(error)
    if torch_messages.is_stale(message) and not isinstance(event, Refusal):
        seen = error.handles if isinstance(error, ClobberError) else set[int]()
        others = clobbers.stale_saves(graph.roots_of(call.outputs), call, recorder.memory, seen)
        if event is None and others:
            refusals.remember(error, others[0])
        recorder.tell(others, error)
    elif event is None and refusals.is_freed(message):
        roots = graph.roots_of(call.outputs)
        refusals.remember(error, refusals.refusal_of_freed(message, roots, call, recorder.memory))


def listen(recorder: Recorder, *_: Any) -> Callable[..., None] | None:
    """Log writes again while Python runs inside a backward that goes unlogged; what is returned ends that."""
    call = recorder.here() if recorder.by_key and recorder.listeners else None
    if call is None or not call.quiet or private.key_is_set():
        return None
    private.set_key(True)
    return lambda *_: private.set_key(False)


@contextmanager
def listening(recorder: Recorder) -> Iterator[None]:
    """The same for a block."""
    end = listen(recorder)
    try:
        yield
    finally:
        if end is not None:
            end()
