"""Checks a save when it is read: reports it, and raises an error, if its version or its bytes have changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.clobber import Clobber
from noclobber.model.error import ClobberError
from noclobber.model.events import Refusal
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward, here, reading
from noclobber.observe.core.save_hooks import Argument, Handle
from noclobber.observe.describe import clobbers, refusals, torch_messages
from noclobber.observe.torch_api import before_2_12, graph, private
from noclobber.observe.witness.digests import Digest, all_known, fingerprint, same
from noclobber.observe.witness.witness import Change, change


def arm(context: Context, way: Way) -> None:
    """At the end of each backward call, make the comparisons that are left, and explain an error that it raised."""

    def ended(call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        stopped = settle(context, call) if call.later else None
        if isinstance(error, RuntimeError):
            _has_failed(context, call, error)
        return stopped

    context.calls.watch_ends(way, ended)


def read(context: Context, handle: Handle, digest: Digest, *, silently: bool) -> torch.Tensor | None:
    """Return the tensor of a save that is unpacked after its version moved, its bytes changed, or a write met it.

    `digest` is the fingerprint at read; None if it was not taken. Raises the error that PyTorch would raise. Unless
    `silently`, also raises where PyTorch would not. Returns None where PyTorch or the program must decide, outside of
    the error boundary (`save_hooks.checked`).
    """
    alias, suspect, current = handle.alias, handle.suspect, int(handle.alias._version)
    if suspect is not None and suspect.theirs is not None:
        return None
    node, expected = private.current_node(), handle.version
    guarded = context.core.guarded
    if not silently and not clobbers.is_read(handle, node):
        return alias
    if suspect is not None:
        if suspect.kept is not None:
            return suspect.kept
        # PyTorch refuses to unpack an input that was detached in place. There are three exceptions: in a custom
        # Function; outside of a backward, where a stand-in replaces the lost node; and if the tensor has got a new node
        # since (saved_variable.cpp of torch 2.13).
        by_function = isinstance(node, BackwardCFunction) or (before_2_12.is_used() and isinstance(handle, Argument))
        asks = node is not None and not by_function
        if (
            suspect.detached is not None
            and silently
            and asks
            and ((saved := handle()) is None or saved.grad_fn is None)
        ):
            error = ClobberError(refusals.DETACHED)
            guarded(lambda: refusals.remember(error, refusals.refusal_of_read(handle, str(error), reading())))
            raise error
    if current != expected:
        if not silently and same(handle.digest, fingerprint(alias) if digest is None else digest):
            return alias  # bytes are preserved, and the write that moved the version went to other bytes
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
    if handle.digest is not None and digest is None:
        digest = fingerprint(alias)
    call = here()
    what = change(handle.digest, digest, waits=not silently or call is None)
    if what is Change.LATER and call is not None:
        if clobbers.is_read(handle, node):
            later = clobbers.later(handle, node, digest, call, context.memory)
            call.later.append(later._replace(tell=partial(_watched, context, handle.moment, later.tell)))
    elif what is Change.BYTES and clobbers.is_other(handle, node, alias, handle.digest):

        def found() -> Clobber:
            return clobbers.clobber_of(handle, node, reading(), context.memory)

        clobber = guarded(partial(_watched, context, handle.moment, found))
        stopped = ClobberError(clobbers.CHANGED) if context.strict or not silently else None
        guarded(partial(context.bus.tell, [clobber] if clobber else [], stopped))
        if stopped is not None:
            raise stopped
    return alias


def _watched(context: Context, saved: int, found: Callable[[], Clobber | None]) -> Clobber | None:
    """Return a clobber; None if nobody saw the write, and the save, of the moment `saved`, is from before seeing began.

    The line that wrote may not have been watched then, and the coverage says so.
    """
    clobber, began = found(), context.memory.began
    if clobber is None or context.strict or (began is not None and saved >= began):
        return clobber
    if any(write.via != "foreign" or write.op for write in clobber.writes):
        return clobber
    context.bus.not_seen("what changed saved bytes between two watched blocks")
    return None


def settle(context: Context, call: Backward) -> ClobberError | None:
    """Compare all fingerprints of a call that stayed on a device, at once. The program waits for the device only here.

    Reports the saves that differ. Returns the error to raise; None if there is none.
    """
    waiting, call.later = sorted(call.later, key=lambda later: later.order), []
    changed = all_known([later.differs for later in waiting])
    found = [later.tell() for later, differs in zip(waiting, changed, strict=True) if differs]
    stopped = ClobberError(clobbers.CHANGED) if context.strict and found else None
    context.bus.tell([clobber for clobber in found if clobber is not None], stopped, call)
    return stopped


def _has_failed(context: Context, call: Backward, error: RuntimeError) -> None:
    """Explain an error that a backward call raised: report the other stale saves of its graph, or what was freed."""
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
    elif event is None and message == refusals.DETACHED:
        roots = graph.roots_of(call.outputs)
        refusals.remember(error, refusals.refusal_of_detached(message, roots, call, context.memory))
