"""The one wrapper of the autograd engine. Every backward call of a watched thread begins and ends here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import torch

from noclobber.observe.core import optimizer_steps, threads
from noclobber.observe.core.backward_calls import End, read
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward, here, moment
from noclobber.observe.core.sites import identity
from noclobber.observe.core.write_log import may_rest
from noclobber.observe.torch_api import private

_LINES = 64
"""The number of lines for which `Thread.boundaries` holds when they last ran a backward."""


def arm(context: Context, way: Way) -> None:
    """See every backward call of a thread that is watched."""
    engine = private.engine()

    def _engine_run_backward(t_outputs: Iterable[object], *args: object, **kwargs: object) -> object:
        # The function has PyTorch's own name: code that walks the stack finds the engine by it.
        # The frame is not kept in a variable: one that refers to itself keeps all others until a garbage collection.
        begun = way.guarded(partial(_begins, context, sys._getframe(), t_outputs, args, kwargs))
        if begun is None:
            return engine(t_outputs, *args, **kwargs)
        call, ends = begun
        try:
            result = engine(t_outputs, *args, **kwargs)
        except BaseException as error:
            call.over = True  # set first, whatever fails afterwards
            way.guarded(partial(_has_ended, context, call, ends, None, error), also_off=True)
            __tracebackhide__ = True  # IPython and pytest leave this frame out (tests/integrations/test_notebooks.py)
            raise
        call.over = True
        way.guarded(partial(_has_ended, context, call, ends, result, None), also_off=True)
        return result

    way.patches.put(torch.autograd, "_engine_run_backward", _engine_run_backward)


def _begins(
    context: Context,
    frame: FrameType,
    outputs: Iterable[object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[Backward, list[tuple[Way, End]]] | None:
    """Return the backward call that this thread begins, and what its watchers want to be called at its end.

    None for a call that nobody watches.
    """
    thread = context.thread
    outer = here() if thread.backwards or not thread.entered else None
    if not context.bus.listeners or thread.apart:
        return None
    if thread.entered:
        threads.enter(context)
    elif outer is None:
        context.bus.not_seen("backward calls in threads that ran before watching began")
        return None
    optimizer_steps.unmute(thread)
    call = read(frame, outputs, args, kwargs)
    call.outer, call.node, call.hooks = outer, private.next_node(), thread.hooks
    ends = context.calls.begin(call)  # watchers may find hooks, whose writes must be logged
    logged = context.by_key and not context.python_in_backward and private.key_is_set()
    call.quiet = logged and may_rest(context, outputs, call.create_graph)
    if context.contents is not None:
        sharing = call.quiet and context.is_alone
        context.contents.begin(sharing=sharing)
        if context.native is not None:
            context.native.set_sharing(sharing)
    try:
        thread.backwards.append(call)
        if context.native is not None:
            context.native.set_backwards(len(thread.backwards))
        private.set_backward_call(call)
        if call.quiet:
            private.set_key(False)
            if not call.create_graph:
                threads.rest_hooks(context, call)
    except Exception:
        call.over = True  # the backward runs unwatched
        raise
    return call, ends


def _has_ended(
    context: Context, call: Backward, ends: list[tuple[Way, End]], result: object, error: BaseException | None
) -> None:
    """Undo what `_begins` did and call the watchers. Raises the ClobberError that a watcher returned, if any."""
    thread, call.frame = context.thread, None
    if call.outer is None and (thread.hooks is not call.hooks or not thread.entered):
        threads.put_right(context, call)
    elif call.quiet:
        private.set_key(True)
        threads.wake_hooks(context, call)
    thread.backwards.remove(call)
    if context.native is not None:
        context.native.set_backwards(len(thread.backwards))
    private.set_backward_call(call.outer)
    if context.contents is not None:
        context.contents.begin(sharing=False)
        if context.native is not None:
            context.native.set_sharing(False)
    stopped = None
    for way, end in reversed(ends):
        stopped = way.guarded(partial(end, result, error), also_off=True) or stopped
    if error is not None:
        return
    thread.boundary = private.next_node()
    line = identity(call.place)
    thread.boundaries.pop(line, None)
    thread.boundaries[line] = (call.place, thread.boundary)
    if len(thread.boundaries) > _LINES:
        del thread.boundaries[next(iter(thread.boundaries))]
    if call.call == "backward":
        context.memory.accumulated.append((moment(), call.place))
    if stopped is not None:
        raise stopped


def arm_listening(context: Context, way: Way) -> None:
    """Log the writes that custom Functions make in backward."""
    context.customs.watch(way, partial(listen, context))


def listen(context: Context, *_: object) -> Callable[..., None] | None:
    """Log writes, and save with hooks, while Python code runs inside a backward that does without.

    Returns what ends this; None where there is nothing to do.
    """
    call = here() if context.by_key and context.bus.listeners else None
    if call is None or not call.quiet or private.key_is_set():
        return None
    private.set_key(True)
    threads.wake_hooks(context, call)

    def rest(*_: object) -> None:
        private.set_key(False)
        threads.rest_hooks(context, call)

    return rest


@contextmanager
def listening(context: Context) -> Iterator[None]:
    """Do what `listen` does for a block."""
    end = listen(context)
    try:
        yield
    finally:
        if end is not None:
            end()
