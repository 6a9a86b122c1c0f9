"""Threads: dispatch keys and hooks belong to a thread in PyTorch, so each watched thread is entered and left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch

from noclobber.observe.core import save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import handles
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, hook_stack, native_saves
from noclobber.observe.torch_api.dispatch import modes, spare_key


def arm(context: Context, way: Way) -> None:
    """Enter every thread that starts from now on, and leave it at its end."""
    around(way, lambda: begin_block(context), lambda: end_block(context))


def around(way: Way, enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Run `enter` and `leave` in every `threading.Thread` that starts from now on: it inherits no keys and no hooks."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        way.guarded(enter)
        try:
            bootstrap(self)
        finally:
            way.guarded(leave)

    way.patches.put(threading.Thread, "_bootstrap_inner", _bootstrap_inner)


def begin_block(context: Context) -> None:
    """Watch the calling thread for a block, also if it started before watching began."""
    context.thread.blocks += 1
    enter(context)


def end_block(context: Context) -> None:
    """End a block of this thread. With the last block, leave the thread."""
    thread = context.thread
    thread.blocks = max(0, thread.blocks - 1)
    if not thread.blocks:
        leave(context)


def enter(context: Context) -> None:
    """Arm the calling thread, if anything is armed; again if it was armed in an earlier arming."""
    thread = context.thread
    if not context.armed or (thread.entered and thread.arming == context.armings):
        return
    leave(context)
    thread.entered, thread.arming = True, context.armings
    thread.backwards = [call for call in thread.backwards if not call.over]  # in case the end of a call failed
    context.count_threads(1)
    spare_key.set_key(True)
    if context.watching:
        if thread.era != context.era:
            thread.era, thread.first_node = context.era, engine_state.next_node()
            thread.walked.clear()
        push_hooks(context)
    else:
        _enter_native(context)
    renew_modes(context)


def leave(context: Context) -> None:
    """Disarm the calling thread."""
    thread = context.thread
    if not thread.entered:
        return
    # First remove what PyTorch holds of noclobber, whatever may fail after that.
    hooks, withdrawn, operators = thread.hooks, thread.withdrawn, thread.operators
    thread.entered = thread.muted = False
    thread.hooks = thread.withdrawn = thread.operators = thread.step = None
    spare_key.set_key(False)
    if context.native is not None:
        context.native.leave()
    try:
        if hooks is not None and not withdrawn:
            if hook_stack.top_hooks(True) == hooks:
                hook_stack.pop_hooks()
            else:
                hook_stack.replace_hooks(lambda pair: pair == hooks or save_hooks.are_ours(pair))
    finally:
        if operators is not None:
            operators.__exit__(None, None, None)
    context.count_threads(-1)
    versions_preserved(context, -thread.preserving)


def _enter_native(context: Context) -> None:
    """Let the native part take this thread's writes, and its saves where nobody else must be told of each."""
    native, hooks = context.native, context.thread.hooks
    if native is not None:
        foreign = context.memory.foreign_writers
        takes = save_hooks.are_ours(hooks) and not context.accounts
        handed, contents = None if foreign is None else foreign.handed, context.contents
        moved = contents.moved if contents is not None and contents.only_foreign else None
        native.enter(
            hooks if takes else None, handed, contents=contents is not None, keeping=context.keeping, moved=moved
        )


@contextmanager
def apart(context: Context) -> Iterator[None]:
    """Run a block of the calling thread unwatched and without hooks: a trial of noclobber's own is not the program."""
    thread = context.thread
    if not thread.entered:
        yield
        return
    with spare_key.unlogged(), modes.no_modes(), native_saves.without_hooks():
        thread.entered, thread.apart = False, True
        try:
            yield
        finally:
            thread.entered, thread.apart = True, False


def push_hooks(context: Context) -> None:
    """Push hooks for this thread. PyTorch only calls the uppermost pair, so ours calls the program's pair below it."""
    below = hook_stack.top_hooks(True)
    if below and not save_hooks.are_ours(below):
        ours = context.parts.around(context, below)
    else:
        ours = save_hooks.hooks(context, _saved_late)
    hook_stack.push_hooks(*ours)
    context.thread.hooks = ours
    _enter_native(context)


def _saved_late(context: Context, tensor: torch.Tensor) -> Handle:
    """Return the handle of a save in a thread that has gone on since watching ended in another thread.

    Where something is watched again, the thread is entered again first: else its writes would not be seen, as a kernel
    that finds nobody to tell takes the key off its thread.
    """
    enter(context)
    hooks = context.thread.hooks
    if not context.armed or hooks is None or not save_hooks.are_ours(hooks):
        return handles.versioned(tensor)
    handle = cast(Handle, hooks[0](tensor))
    if context.contents is None:
        handle.shown = None  # the older hooks, which read it, may compare contents
    return handle


def has_hooks_on_top(context: Context) -> bool:
    """Return True if the uppermost pair of this thread is noclobber's, and not one that the program pushed later."""
    top = hook_stack.top_hooks(True)
    return top is not None and (save_hooks.are_ours(top) or top == context.thread.hooks)


def renew_hooks(context: Context) -> None:
    """Replace the hooks of this thread at their place on the stack, as the mode has changed."""
    thread = context.thread
    if not save_hooks.are_ours(thread.hooks):
        return
    thread.hooks = save_hooks.hooks(context, _saved_late)
    if thread.withdrawn is not None:
        thread.withdrawn = thread.hooks
    else:
        hook_stack.replace_hooks(save_hooks.are_ours, thread.hooks)
    _enter_native(context)


def renew_modes(context: Context) -> None:
    """Put the mode that sees every operator on this thread's stack, if anybody asks for that; else take it off."""
    thread = context.thread
    if thread.entered and context.allocations:
        thread.operators = thread.operators or context.allocations[0].enter(context)
    elif thread.operators is not None:
        mode, thread.operators = thread.operators, None
        mode.__exit__(None, None, None)


def withdraw(context: Context, unseen: str) -> bool:
    """Take noclobber's hooks off this thread's stack and return True, if they are on top of it; `unseen` is for the
    report's coverage."""
    thread = context.thread
    if thread.withdrawn is not None or not has_hooks_on_top(context):
        return False
    thread.withdrawn = hook_stack.top_hooks(True)
    hook_stack.pop_hooks()
    context.bus.not_seen(unseen)
    return True


def put_back(context: Context) -> None:
    """Push noclobber's hooks again after `withdraw`."""
    thread = context.thread
    if thread.withdrawn is not None:
        hook_stack.push_hooks(*thread.withdrawn)
        thread.withdrawn = None


def rest_hooks(context: Context, call: Backward) -> None:
    """Take noclobber's hooks off the stack during a backward that saves nothing, if they are on top of it.

    The engine copies the stack several times for each node, and waits for the GIL for each pair (torch 2.13,
    ThreadLocalState.cpp; 5 % of the time of an LSTM's backward).
    """
    if context.thread.withdrawn is None and has_hooks_on_top(context):
        call.hooks, call.resting = call.hooks or hook_stack.top_hooks(True), True
        hook_stack.pop_hooks()


def wake_hooks(context: Context, call: Backward) -> None:
    """Push noclobber's hooks again after `rest_hooks`: those of now, if they were renewed meanwhile."""
    if call.resting and not has_hooks_on_top(context) and (hooks := context.thread.hooks or call.hooks) is not None:
        hook_stack.push_hooks(*hooks)


def put_right(context: Context, call: Backward) -> None:
    """Give this thread the key and the hooks that it should have, after a backward in which they have changed.

    When a node has run, the engine sets the thread's keys and hooks back to what they were before it (torch 2.13,
    ThreadLocalState.cpp; tests/observe/core/test_resting_hooks.py).
    """
    thread = context.thread
    spare_key.set_key(thread.entered)
    if thread.withdrawn is not None:
        return
    if not call.resting and call.hooks is not None:
        hook_stack.replace_hooks(lambda pair: pair == call.hooks or save_hooks.are_ours(pair), thread.hooks)
    elif thread.hooks is not None:
        hook_stack.push_hooks(*thread.hooks)


def versions_preserved(context: Context, more: int) -> None:
    """Count a block that restores version counters at its end: this thread enters (1) or leaves (-1) it."""
    if context.thread.preserving + more >= 0:
        context.thread.preserving += more
        context.be_careful(more)


def arm_preserved_versions(context: Context, way: Way) -> None:
    """Look at all writes in blocks that restore version counters: DistributedDataParallel writes its buffers in such a
    block, FSDP2 its parameters (torch 2.13)."""
    owner = private.lookup("autograd.grad_mode._unsafe_preserve_version_counter")
    way.before(owner, "__enter__", lambda *_: versions_preserved(context, 1))
    way.before(owner, "__exit__", lambda *_: versions_preserved(context, -1))


def arm_transforms(context: Context, way: Way) -> None:
    """Take noclobber's hooks away before torch.func, make_fx or the program forbids hooks, and set them again
    afterwards."""
    autograd = private.lookup("_C._autograd")
    disable = private.lookup("_C._autograd._saved_tensors_hooks_disable")
    private.lookup("_C._autograd._saved_tensors_hooks_enable")

    def _saved_tensors_hooks_disable(*args: object, **kwargs: object) -> None:
        by_transform = str(args[0] if args else "").startswith("torch.func.")
        unseen = "saves inside torch.func transforms" if by_transform else "saves inside `disable_saved_tensors_hooks`"
        way.guarded(withdraw, context, unseen)
        if not way.on and (pair := context.thread.hooks) is not None and hook_stack.top_hooks(True) == pair:
            hook_stack.pop_hooks()  # else PyTorch refuses
        disable(*args, **kwargs)

    way.patches.put(autograd, "_saved_tensors_hooks_disable", _saved_tensors_hooks_disable)
    way.after(autograd, "_saved_tensors_hooks_enable", lambda _: put_back(context))
