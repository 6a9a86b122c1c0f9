"""The one wrapper of the autograd engine: every backward call of a watched thread begins and ends here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from noclobber.observe.core import optimizer_steps, threads
from noclobber.observe.core.backward_calls import End, read
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward, here, moment
from noclobber.observe.core.write_log import may_rest
from noclobber.observe.torch_api import private

_LINES = 64
"""Lines that ran a backward, of which it is known when they last did."""


def arm(context: Context, way: Way) -> None:
    """Be there at every backward call of a thread that is watched."""
    engine = private.engine()

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch's own name for it: whoever walks the stack knows the engine by that.
        begun = way.guarded(lambda: _begins(context, t_outputs, args, kwargs))
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
    context: Context, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Backward, Callable[[Any, BaseException | None], None]] | None:
    """A backward call is about to begin in this thread: the call, and what is to be called at its end."""
    thread = context.thread
    outer = here() if thread.backwards or not thread.entered else None
    if not context.bus.listeners:
        return None
    if thread.entered:
        threads.enter(context)
    elif outer is None:
        context.bus.not_seen("backward calls in threads that ran before watching began")
        return None
    optimizer_steps.unmute(thread)
    call = read(outputs, args, kwargs)
    call.outer, call.node = outer, private.next_node()
    ends = context.calls.begin(call)  # who may find hooks, which are to be listened to
    logged = context.by_key and not context.python_in_backward and private.key_is_set()
    call.quiet = logged and may_rest(context, outputs, call.create_graph)
    if context.contents is not None:
        context.contents.begin(sharing=call.quiet and context.is_alone)
    try:
        thread.backwards.append(call)
        private.set_backward_call(call)
        if call.quiet:
            private.set_key(False)
    except Exception:
        call.over = True  # it goes on without us
        raise
    return call, partial(_has_ended, context, call, ends)


def _has_ended(
    context: Context, call: Backward, ends: list[tuple[Way, End]], result: Any, error: BaseException | None
) -> None:
    thread, call.frame = context.thread, None
    if call.quiet and thread.watched:
        private.set_key(True)
    thread.backwards.remove(call)
    private.set_backward_call(call.outer)
    if context.contents is not None:
        context.contents.begin(sharing=False)
    stopped = None
    for way, end in reversed(ends):
        stopped = way.entry(end, also_off=True)(result, error) or stopped
    if error is not None:
        return
    thread.boundary = private.next_node()
    thread.boundaries.pop(call.place, None)
    thread.boundaries[call.place] = thread.boundary
    if len(thread.boundaries) > _LINES:
        del thread.boundaries[next(iter(thread.boundaries))]
    if call.call == "backward":
        context.memory.accumulated.append((moment(), call.place))
    if stopped is not None:
        raise stopped


def arm_listening(context: Context, way: Way) -> None:
    """Log the writes of custom Functions in backward."""
    context.customs.watch(way, partial(listen, context))


def listen(context: Context, *_: Any) -> Callable[..., None] | None:
    """Log writes again while Python runs inside a backward that goes unlogged; what is returned ends that."""
    call = here() if context.by_key and context.bus.listeners else None
    if call is None or not call.quiet or private.key_is_set():
        return None
    private.set_key(True)
    return lambda *_: private.set_key(False)


@contextmanager
def listening(context: Context) -> Iterator[None]:
    """The same for a block."""
    end = listen(context)
    try:
        yield
    finally:
        if end is not None:
            end()
