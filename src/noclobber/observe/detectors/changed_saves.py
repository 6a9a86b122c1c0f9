"""A save is read: whether its version or its bytes are others than when it was saved, and what is then raised."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.observe.core import save_hooks
from noclobber.observe.core.backward_calls import End
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import Digest, OnDevice, all_known, fingerprint, same
from noclobber.observe.core.records import Backward, here, reading
from noclobber.observe.core.save_hooks import ArgumentOfNode, Handle, Suspect
from noclobber.observe.describe import clobbers, refusals, torch_messages
from noclobber.observe.torch_api import graph, private


def arm(context: Context, way: Way) -> None:
    """Settle at the end of each backward call what was left to compare, and look what else an error that leaves one is
    about."""

    def begin(call: Backward) -> End:
        def ended(result: Any, error: BaseException | None) -> ClobberError | None:
            stopped = settle(context, call) if call.later else None
            if isinstance(error, RuntimeError):
                _has_failed(context, call, error)
            return stopped

        return ended

    context.calls.watch(way, begin)


def read(context: Context, handle: Handle, digest: Digest, *, silently: bool) -> torch.Tensor | None:
    """A save is unpacked and its version moved, its bytes are others, or a write met it. Raises what PyTorch would
    raise, and where not `silently` what it would not; `digest`: the fingerprint at read, None if it was not taken.

    None where PyTorch, or the program, is to be asked outside of the error boundary (saves.checked).
    """
    alias, version, current = handle.alias, handle.version, int(handle.alias._version)
    if isinstance(version, Suspect) and version.theirs is not None:
        return None
    node, expected = private.current_node(), save_hooks.version_at_save(handle)
    guarded = context.core.guarded
    if not silently and not clobbers.is_read(handle, node):
        return alias
    if isinstance(version, Suspect):
        if version.kept is not None:
            return version.kept
        # PyTorch refuses an input that was detached in place; but not to custom Functions, nor outside of a backward:
        # there it unpacks with a node that stands in for the lost one; nor where the tensor was given a new node since
        # (saved_variable.cpp of torch 2.13).
        by_function = isinstance(node, BackwardCFunction) or isinstance(handle, ArgumentOfNode)
        asks = node is not None and not by_function
        if version.refuses is not None and silently and asks and ((saved := handle()) is None or saved.grad_fn is None):
            error = ClobberError(version.refuses)
            guarded(lambda: refusals.remember(error, refusals.refusal_of_read(handle, str(error), reading())))
            raise error
    if current != expected:
        if not silently and same(handle.digest, fingerprint(alias) if digest is None else digest):
            return alias  # where bytes are preserved: what moved the version was written elsewhere
        try:
            message = torch_messages.stale_message(alias, None, current, expected)
        except NotImplementedError:
            return None
        clobber = guarded(lambda: clobbers.clobber_of(handle, node, reading(), context.memory))
        error = ClobberError(clobber.message if clobber else message)
        error.handles = {id(handle)}
        if clobber is not None:
            refusals.remember(error, clobber)
            guarded(partial(context.bus.tell, [clobber], error))
        raise error
    if handle.digest is None:
        return alias
    if digest is None:
        digest = fingerprint(alias)
    if digest is None and isinstance(handle.digest, OnDevice):
        return alias  # it can't be read now
    call = here()
    if isinstance(digest, OnDevice) and silently and call is not None:
        if clobbers.is_read(handle, node):
            call.later.append(clobbers.later(handle, node, digest, call, context.memory))
    elif not same(digest, handle.digest) and clobbers.is_other(handle, node, alias, handle.digest):
        clobber = guarded(lambda: clobbers.clobber_of(handle, node, reading(), context.memory))
        stopped = ClobberError(clobbers.CHANGED) if context.strict or not silently else None
        guarded(partial(context.bus.tell, [clobber] if clobber else [], stopped))
        if stopped is not None:
            raise stopped
    return alias


def settle(context: Context, call: Backward) -> ClobberError | None:
    """Compare the fingerprints of a call that stayed on a device, all at once: the program waits for it only here.

    Tells of those that differ, and gives what is to be raised, if anything.
    """
    waiting, call.later = sorted(call.later, key=lambda one: one.order), []
    changed = all_known([one.differs for one in waiting])
    found = [one.tell() for one, differs in zip(waiting, changed, strict=True) if differs]
    stopped = ClobberError(clobbers.CHANGED) if context.strict and found else None
    context.bus.tell([one for one in found if one is not None], stopped, call)
    return stopped


def _has_failed(context: Context, call: Backward, error: RuntimeError) -> None:
    """An error leaves a backward call: find the other stale saves of its graph, or what was freed."""
    event, message = refusals.remembered(error), str(error)
    if torch_messages.is_stale(message) and not isinstance(event, Refusal):
        seen = error.handles if isinstance(error, ClobberError) else set[int]()
        others = clobbers.stale_saves(graph.roots_of(call.outputs), call, context.memory, seen)
        if event is None and others:
            refusals.remember(error, others[0])
        context.bus.tell(others, error)
    elif event is None and refusals.is_freed(message):
        roots = graph.roots_of(call.outputs)
        refusals.remember(error, refusals.refusal_of_freed(message, roots, call, context.memory))
