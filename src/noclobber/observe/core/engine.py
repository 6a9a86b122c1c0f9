"""The one wrapper of the autograd engine. Every backward call of a watched thread begins and ends here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import torch
from torch.autograd.graph import Node

from noclobber.model.reports.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core import threads
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.records import Backward, here, moment, read
from noclobber.observe.core.seen.sites import identity, place_of
from noclobber.observe.core.writes import optimizer_steps
from noclobber.observe.core.writes.write_log import may_rest
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes, spare_key
from noclobber.observe.torch_api.tensors import tensor_state

_COMPILED = "CompiledFunctionBackward"
"""The node that AOTAutograd makes for a whole graph (torch 2.13; tests/observe/core/test_checked_calls.py)."""
_TRACED = "torch._subclasses.functional_tensor"
"""Where the classes of tensors without bytes are, of which torch.compile asks gradients itself to trace a backward."""
_LINES = 64
"""The number of lines for which `Thread.boundaries` holds when they last ran a backward."""


def arm(context: Context, way: Way) -> None:
    """See every backward call of a thread that is watched."""
    engine = engine_state.engine()

    def _engine_run_backward(t_outputs: Iterable[object], *args: object, **kwargs: object) -> object:
        # The function has PyTorch's own name: code that walks the stack finds the engine by it.
        # The frame is not kept in a variable: one that refers to itself keeps all others until a garbage collection.
        call = begins(sys._getframe(), t_outputs, args, kwargs)
        if call is None:
            return engine(t_outputs, *args, **kwargs)
        try:
            result = engine(t_outputs, *args, **kwargs)
        except BaseException as error:
            call.over = True  # set first, whatever fails afterwards
            has_ended(call, None, error)
            without_own_frames(error)
            raise
        call.over = True
        try:
            has_ended(call, result, None)
        except ClobberError as stopped:
            without_own_frames(stopped)
            raise
        return result

    both: tuple[Callable[..., Backward | None], Callable[..., None]]
    both = partial(_begins, context), partial(_has_ended, context)
    if context.native is not None:
        both = context.native.around_backward(*both, _LINES)
    begins, has_ended = way.entry(both[0]), way.entry(both[1], also_off=True)
    way.patches.put(torch.autograd, "_engine_run_backward", _engine_run_backward)


def _begins(
    context: Context, frame: FrameType, outputs: Iterable[object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Backward | None:
    """Return the backward call that this thread begins; None for a call that nobody watches.

    `frame` calls the engine with these arguments.
    """
    thread, calls = context.thread, context.calls
    if context.before_backward is not None and not thread.backwards:
        due, context.before_backward = context.before_backward, None
        due()
    if thread.backwards and thread.backwards[0].over:
        _recover(context)
    outer = here() if thread.backwards or not thread.entered else None
    if not context.bus.listeners or thread.apart:
        return None
    if thread.entered:
        if thread.arming != context.armings:
            threads.enter(context)
    elif outer is None:
        context.bus.not_seen("backward calls in threads that ran before watching began")
        if context.everywhere:  # as where another thread than the main one imports torch
            threads.enter(context)
        return None
    optimizer_steps.unmute(thread)
    place = place_of(frame) if context.native is None else context.native.backward_begins()
    call = read(place, frame, outputs, args, kwargs)
    call.outer, call.node, call.hooks = outer, engine_state.next_node(), thread.hooks
    call.is_checked = outer is None and context.watching and _saves_were_seen(context, call)
    calls.begins(call)
    if not context.python_in_backward and hook_stack.program_has_hooks():
        # noclobber may not have seen the registration: Node.register_hook is not replaced, and there may be hooks
        # from before noclobber began.
        context.python_in_backward = True
    quiet = not context.python_in_backward and spare_key.key_is_set()
    call.quiet = quiet = quiet and (not context.careful or may_rest(context, outputs, call.create_graph))
    if not quiet:
        calls.python_begins(call)
    _share_reads(context, quiet and context.is_alone)
    try:
        thread.backwards.append(call)
        engine_state.set_backward_call(call)
        if quiet:
            spare_key.set_key(False)
            if not call.create_graph:
                threads.rest_hooks(context, call)
    except Exception:
        call.over = True  # the backward runs unwatched
        raise
    return call


def _recover(context: Context) -> None:
    """End the calls whose end was interrupted: by Ctrl-C, or as the stack was full."""
    thread = context.thread
    spare_key.set_key(thread.entered)
    for call in thread.backwards:
        threads.wake_hooks(context, call)
    thread.backwards.clear()
    engine_state.set_backward_call(None)
    context.bus.not_seen("what followed a backward call whose end was interrupted")


def _has_ended(context: Context, call: Backward, result: object, error: BaseException | None) -> None:
    """Undo what was done for a call that begins, and call the watchers. Raises the ClobberError that one of them
    returned, if any."""
    thread, call.frame = context.thread, None
    if call.outer is None and (thread.hooks is not call.hooks or not thread.entered):
        threads.put_right(context, call)
    elif call.quiet:
        spare_key.set_key(True)
        threads.wake_hooks(context, call)
    with suppress(ValueError):  # a signal handler that ran a backward just now has recovered from this one
        thread.backwards.remove(call)
    engine_state.set_backward_call(call.outer)
    if call.quiet:
        _share_reads(context, False)
    if call.is_checked:
        context.bus.check(raised=error is not None)
    stopped = context.calls.end(call, result, error) if error is not None or call.later or call.ends else None
    if error is not None:
        return
    thread.boundary = engine_state.next_node()
    line = identity(call.place)
    thread.boundaries.pop(line, None)
    thread.boundaries[line] = (call.place, thread.boundary)
    if len(thread.boundaries) > _LINES:
        del thread.boundaries[next(iter(thread.boundaries))]
    if call.call == "backward":
        context.memory.accumulated.append((moment(), call.place))
    if stopped is not None:
        raise stopped


def _saves_were_seen(context: Context, call: Backward) -> bool:
    """Return True if noclobber has seen the saves at the top of the graph. Where it has not, the coverage says so."""
    if modes.transforms_active() or any(map(_is_inside_a_transform, call.outputs)):
        return False
    if not (roots := graph.roots_of(call.outputs)):
        return True
    if all(node.name() == _COMPILED for node in roots):
        return False
    is_early = all(node._sequence_nr() < context.thread.first_node for node in roots)
    if is_early and not _are_seen(context, roots):  # each thread numbers its own nodes
        context.bus.not_seen("backward calls of graphs that were made before watching began")
        return False
    thread, line = context.thread, identity(call.place)
    if thread.first_node and line not in thread.walked and len(thread.walked) < _LINES:
        thread.walked.add(line)
        early = (node for node in graph.walk(roots) if node._sequence_nr() < thread.first_node)
        if any(map(_is_bare, early)):
            context.bus.not_seen("saves from before watching began, or of threads that ran before")
    return True


def _is_bare(node: Node) -> bool:
    """Return True if a node keeps a tensor that no hook has packed: it was saved where noclobber was not on. A number
    that Python gave an operator gets no hooks (torch 2.13, saved_variable.cpp)."""
    kept = [] if node.name() == _COMPILED else map(graph.content, graph.saves_of_or_gone(node))
    return any(isinstance(one, torch.Tensor) and one.dim() > 0 for one in kept)


def _are_seen(context: Context, roots: list[Node]) -> bool:
    """Return True if noclobber has seen what a graph saves, and all writes since."""
    began, keeps = context.memory.began, False
    for saved in (saved for node in graph.walk(roots) for saved in graph.saves_of_or_gone(node)):
        kept = graph.content(saved)
        if isinstance(kept, Handle) and began is not None and kept.moment >= began:
            return True
        keeps |= kept is not None
    return not keeps


def _is_inside_a_transform(output: object) -> bool:
    traced = type(output).__module__.startswith(_TRACED)
    return traced or (isinstance(output, torch.Tensor) and tensor_state.unwrapped(output) is not output)


def _share_reads(context: Context, sharing: bool) -> None:
    """Forget the fingerprints of reads. From now on a large save is hashed at every read; once only if `sharing`."""
    if context.contents is not None:
        context.contents.begin(sharing=sharing)
        if context.native is not None:
            context.native.set_sharing(sharing)


def arm_listening(context: Context, way: Way) -> None:
    """Log the writes that custom Functions make in backward."""
    context.customs.watch(way, partial(listen, context))


def listen(context: Context, *_: object) -> Callable[..., object] | None:
    """Log writes, and save with hooks, while Python code runs inside a backward that does without.

    Returns what ends this; None where there is nothing to do.
    """
    unlog = log(context)
    if unlog is not None and (call := here()) is not None:
        threads.wake_hooks(context, call)  # the engine itself takes them off again when the node has run
        context.calls.python_begins(call)
    return unlog


def log(context: Context) -> Callable[..., object] | None:
    """Log writes while a checkpointed region runs again inside a backward that does without.

    The region saves with PyTorch's own hooks, and is given no gradient that it could write into. Returns what ends
    this; None where there is nothing to do.
    """
    call = here() if context.bus.listeners else None
    if call is None or not call.quiet or spare_key.key_is_set():
        return None
    spare_key.set_key(True)
    _share_reads(context, False)  # until the call ends: the code may overwrite a save that was read already
    return lambda *_: spare_key.set_key(False)


@contextmanager
def listening(context: Context) -> Iterator[None]:
    """Do what `listen` does for a block."""
    end = listen(context)
    try:
        yield
    finally:
        if end is not None:
            end()
