"""Threads: dispatch keys and hooks are per thread in PyTorch, so each one that is watched is entered, and left."""

from __future__ import annotations

from noclobber.observe.core import interpose, save_hooks, write_kernels
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.torch_api import private


def arm(context: Context, way: Way) -> None:
    """Enter every thread that is started from now on."""
    interpose.around_threads(way, lambda: enter(context), lambda: leave(context))


def begin_block(context: Context) -> None:
    """The calling thread is to be watched, whether or not it was begun while watching was on."""
    context.thread.blocks += 1
    enter(context)


def end_block(context: Context) -> None:
    """One block of this thread less."""
    thread = context.thread
    thread.blocks = max(0, thread.blocks - 1)
    if not thread.blocks:
        leave(context)


def enter(context: Context) -> None:
    """Arm the calling thread; anew where it was armed before everything was."""
    thread = context.thread
    if thread.entered and thread.arming == context.armings:
        return
    leave(context)
    thread.entered, thread.arming = True, context.armings
    thread.backwards = [one for one in thread.backwards if not one.over]  # should an end have failed
    context.count_threads(1)
    if context.by_key:
        private.set_key(True)
    else:
        thread.mode = write_kernels.enter_mode()
    if context.watching:
        push_hooks(context)


def leave(context: Context) -> None:
    """Disarm the calling thread."""
    thread = context.thread
    if not thread.entered:
        return
    # What PyTorch knows of us goes first, whatever may fail after it.
    hooks, withdrawn, mode = thread.hooks, thread.withdrawn, thread.mode
    thread.entered = thread.muted = False
    thread.hooks = thread.withdrawn = thread.mode = thread.step = None
    if context.by_key:
        private.include(private.KEY, False)
    elif mode is not None:
        write_kernels.leave_mode(mode)
    if hooks is not None and not withdrawn:
        if private.top_hooks(True) == hooks:
            private.pop_hooks()
        else:
            private.replace_hooks(lambda pair: pair == hooks or save_hooks.are_ours(pair))
    context.count_threads(-1)
    versions_preserved(context, -thread.preserving)


def push_hooks(context: Context) -> None:
    """Push hooks for this thread. PyTorch calls the uppermost pair alone: ours calls the program's."""
    below = private.top_hooks(True)
    ours = context.make_hooks(None if save_hooks.are_ours(below) else below)
    private.push_hooks(*ours)
    context.thread.hooks = ours


def has_hooks_on_top(context: Context) -> bool:
    """Whether the uppermost pair of this thread is noclobber's, and no program's that was pushed since."""
    top = private.top_hooks(True)
    return top is not None and (save_hooks.are_ours(top) or top == context.thread.hooks)


def renew_hooks(context: Context) -> None:
    """Take other hooks for this thread, as the mode has changed, in the place where they are."""
    thread = context.thread
    if not save_hooks.are_ours(thread.hooks):
        return
    thread.hooks = context.make_hooks(None)
    if thread.withdrawn is not None:
        thread.withdrawn = thread.hooks
    else:
        private.replace_hooks(save_hooks.are_ours, thread.hooks)


def withdraw(context: Context) -> None:
    """Take our hooks off this thread's stack, if they are on top of it."""
    thread = context.thread
    if thread.withdrawn is None and has_hooks_on_top(context):
        thread.withdrawn = private.top_hooks(True)
        private.pop_hooks()


def put_back(context: Context) -> None:
    """Push our hooks again after `withdraw`."""
    thread = context.thread
    if thread.withdrawn is not None:
        private.push_hooks(*thread.withdrawn)
        thread.withdrawn = None
        context.bus.not_seen("saves inside torch.func transforms")


def versions_preserved(context: Context, more: int) -> None:
    """This thread enters (1) or leaves (-1) a block that puts version counters back as they were."""
    if context.thread.preserving + more >= 0:
        context.thread.preserving += more
        context.be_careful(more)


def arm_preserved_versions(context: Context, way: Way) -> None:
    """Look closely in blocks that put version counters back."""
    interpose.in_preserved_versions(way, lambda more: versions_preserved(context, more))


def arm_transforms(context: Context, way: Way) -> None:
    """Take our hooks away where torch.func forbids hooks."""
    interpose.around_disabled_hooks(
        way, lambda: withdraw(context), lambda: put_back(context), lambda: context.thread.hooks
    )
