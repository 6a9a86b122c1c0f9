"""What noclobber does about a changed save: notes and reports it, stops the write, or keeps the bytes.

A write that is about to meet live saves comes to `meet`, the read of a save that may have changed to `read`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from noclobber.model.reports.error import ClobberError
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import After, Context
from noclobber.observe.core.seen import handles as saves
from noclobber.observe.core.seen.handles import Argument, Handle, OfView, Suspect, is_result
from noclobber.observe.core.seen.records import Backward, Record, here, reading
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.describe import clobbers, holders, refusals, torch_messages
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.torch_api import before_2_12
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import tensor_state
from noclobber.observe.witness.digests import Digest, fingerprint, fingerprint_aside, same
from noclobber.observe.witness.layout import geometry, may_touch, touch
from noclobber.observe.witness.witness import Change, change

MOST_WRITES = 16
"""How many writes are kept for one save: the first ones, and the last."""


# -- writes ------------------------------------------------------------------------------------------------------------


def meet(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> After | None:
    """Note a write with the saves that it meets. Returns what to call after the write; None if there is nothing to do.

    Raises ClobberError where noclobber stops writes.

    A fingerprint is taken of a save whose version counter may not move. What an operator made in the graph shares the
    counter of its saves; a leaf that was made from `.data` or wrapped in a Parameter may have its own.
    """
    preserving = context.thread.preserving
    if preserving:
        noted = noted._replace(written=noted.written._replace(uncounted=True))
    if context.contents is not None:
        context.contents.begins_to_write(noted.key)  # also where no operator is seen: optimizers, `.data`
    saves.note_base(handles, tensor)
    of_function = not torch.is_grad_enabled() and tensor_state.is_view_of_function(tensor)
    written = noted.written
    apart = written.uncounted or not tensor.requires_grad or tensor_state.is_leaf(tensor)
    for handle in handles:
        marked = handle.suspected()
        marked.of_function |= of_function and isinstance(handle, OfView)
        if apart and handle.digest is None and may_touch(handle.alias, noted.geometry):
            handle.digest = fingerprint_aside(handle.alias)
            counts = handle.digest is None and not (preserving or written.is_collective or written.only_moves)
            marked.blind |= counts and touch(geometry(handle.alias), noted.geometry)
        writes = marked.writes
        entry = (noted, handle.alias._version)
        if len(writes) < MOST_WRITES:
            writes.append(entry)
        else:
            writes[-1] = entry
    # A `partial` would hold the tensor, and that counts (describe/holders.py).
    context.core.guarded(holders.look, context, handles, tensor, noted)
    if context.keeping:
        copy_before_write.keep(context, handles, noted)
    elif context.stop_writes and not (preserving or noted.written.is_statistics or noted.written.is_collective):
        _stop(context, handles, tensor, noted)
    if tensor.requires_grad or not torch.is_grad_enabled():
        return None
    return context.core.entry(_entering(handles, tensor))


def _stop(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> None:
    """Raise ClobberError if a write is about to change bytes of these saves. One that fills what the program has freed
    does not."""
    struck = [handle for handle in handles if touch(geometry(handle.alias), noted.geometry) and not _fills(handle)]
    # What a policy keeps is left to the second run of its region, which may compute the same from changed bytes.
    found = [clobbers.clobber_to_come(one, tensor, noted) for one in struck if one.unchecked != "policy"]
    if found:
        error = ClobberError(clobbers.STOPPED)
        refusals.remember(error, found[0])
        context.bus.tell(found, error)
        raise error


def _fills(handle: Handle) -> bool:
    """Return True if this is the first write to the memory of a save since the program freed that."""
    suspect = handle.suspected()
    freed, suspect.freed = suspect.freed, False
    return freed


def _entering(handles: list[Handle], tensor: torch.Tensor) -> After:
    """Return what to call after a write to a tensor that is not in the graph yet: it notes the tensor's node, if the
    write has put the tensor into the graph.

    PyTorch keeps the saved tensor, and its error names the node that made that tensor last. noclobber may have only a
    handle left by then.
    """

    versions = [handle.alias._version for handle in handles]

    def written() -> None:
        if not tensor.requires_grad or tensor._is_view() or tensor.grad_fn is None:
            return
        for handle, version in zip(handles, versions, strict=True):
            # A write through `.data` goes to another tensor, which has its own version counter.
            if (suspect := handle.suspect) is not None and handle.alias._version != version:
                own = type(handle) is Handle and handle() is tensor
                suspect.made = (tensor.grad_fn.name(), tensor.output_nr) if own else suspect.made
                if isinstance(handle, OfView):
                    suspect.made = ("AsStridedBackward0", 0)

    return written


def detached(context: Context, tensor: torch.Tensor) -> bool:
    """Note a tensor that is about to be detached in place with its saves, on whatever memory they are; return True.

    PyTorch refuses to unpack an input that was detached after its save (saved_variable.cpp). It refuses to detach a
    view at once, and reading the node of a view may raise another error.
    """
    producer = None if tensor._is_view() else tensor.grad_fn
    if producer is not None:
        context.live.all()  # every save has a handle then, also one that the native part has taken
    where = caller()
    for handle in weakref.getweakrefs(tensor) if producer is not None else ():
        if isinstance(handle, Handle) and not context.core.guarded(is_result, handle, producer):
            suspect = handle.suspected()
            suspect.detached, suspect.detached_at = True, where
    return True


def detached_by_number(context: Context, tensor: torch.Tensor) -> None:
    """Do the same where `detached` has failed: without it the program would go on with a wrong gradient.

    The numbers of nodes decide, which are right but for other threads and remade views.
    """
    producer = None if tensor._is_view() else tensor.grad_fn
    number = producer._sequence_nr() if producer is not None else None
    if number is not None:
        context.live.all()
    for handle in weakref.getweakrefs(tensor) if number is not None else ():
        if isinstance(handle, Handle) and handle.node != number:
            handle.suspect = Suspect(detached=True)


def spare(context: Context, tensor: torch.Tensor, node: int, place: Place | None, digest: Digest) -> Handle | None:
    """Return a handle of what a save keeps elsewhere, which gets the copy of the bytes; None where none are kept."""
    if not context.keeping:
        return None
    handle = saves.handle_of(tensor, node, place, digest)
    context.live.add(handle)
    return handle


def have_moved(context: Context, those: list[tuple[torch.Tensor, Handle]]) -> None:
    """Let handles follow their tensors to other memory; not where bytes are preserved, which keeps the old."""
    with modes.plain():
        for tensor, handle in those if not context.keeping else ():
            saves.moved(handle, saves.alias_elsewhere(tensor, handle.alias), context.live)


# -- reads -------------------------------------------------------------------------------------------------------------


def read(context: Context, handle: Handle, digest: Digest, preserved: bool) -> torch.Tensor | None:
    """Return the tensor of a save that is unpacked after its version moved, its bytes changed, or a write met it.

    `digest` is the fingerprint at read; None if it was not taken. Raises the error that PyTorch would raise. If the
    save was made where bytes were `preserved`, also raises where PyTorch would not. Returns None where PyTorch or the
    program must decide, outside of the error boundary (`save_hooks.checked`).
    """
    node, alias = engine_state.current_node(), handle.alias
    if handle.suspect is not None and handle.suspect.theirs is not None:
        return None
    if preserved and not clobbers.is_read(handle, node):
        return alias
    if handle.kept is not None:
        return handle.kept
    if not preserved and _is_refused(handle, node):
        error = ClobberError(refusals.DETACHED)
        context.core.guarded(lambda: refusals.remember(error, refusals.refusal_of_read(handle, reading())))
        raise error
    call = here()
    moved = int(alias._version) != handle.version
    if digest is None and handle.digest is not None and (preserved or not moved):
        digest = fingerprint(alias)
    verdict = _verdict(handle, node, digest, moved, preserved, waits=preserved or call is None)
    if verdict is Change.VERSION:
        _stale(context, handle, node)
        return None
    if verdict is Change.LATER and call is not None:
        later = clobbers.later(handle, node, digest, call, context.memory)
        call.later.append(later._replace(tell=partial(_watched, context, handle.moment, later.tell)))
    elif verdict is Change.BYTES:
        found = partial(clobbers.clobber_of, handle, node, reading(), context.memory)
        clobber = context.core.guarded(_watched, context, handle.moment, found)
        report(context, [clobber] if clobber else [], stops=context.strict or preserved)
    return alias


def _verdict(handle: Handle, node: Node | None, digest: Digest, moved: bool, preserved: bool, waits: bool) -> Change:
    """Return what has changed about a save that `node` reads. `moved` says whether its version has, `waits` whether the
    program waits for a device."""
    if handle.digest is None and handle.suspect is not None and handle.suspect.blind and not moved:
        return Change.BYTES if clobbers.is_read(handle, node) else Change.NO
    if moved:  # where bytes are preserved, the write that moved the version may have gone to other bytes
        return Change.NO if preserved and same(handle.digest, digest) else Change.VERSION
    what = change(handle.digest, digest, waits=waits)
    if what is Change.LATER:
        return what if clobbers.is_read(handle, node) else Change.NO
    if what is Change.BYTES:
        return what if clobbers.is_other(handle, node, handle.alias, handle.digest) else Change.NO
    return what


def _is_refused(handle: Handle, node: Node | None) -> bool:
    """Return True if PyTorch refuses to unpack an input, because it was detached in place.

    There are three exceptions: in a custom Function; outside of a backward, where a stand-in replaces the lost node;
    and if the tensor has got a new node since (saved_variable.cpp of torch 2.13).
    """
    if handle.suspect is None or not handle.suspect.detached or node is None:
        return False
    if isinstance(node, BackwardCFunction) or (before_2_12.is_used() and isinstance(handle, Argument)):
        return False
    return (saved := handle()) is None or saved.grad_fn is None


def _stale(context: Context, handle: Handle, node: Node | None) -> None:
    """Report a save whose version moved, and raise what PyTorch raises; return where that is NotImplementedError."""
    try:
        message = torch_messages.stale_message(handle.alias, None, int(handle.alias._version), handle.version)
    except NotImplementedError:
        return
    clobber = context.core.guarded(lambda: clobbers.clobber_of(handle, node, reading(), context.memory))
    error = ClobberError(clobber.message if clobber else message)
    error.handles = {id(handle)}
    if clobber is not None:
        refusals.remember(error, clobber)
        context.core.guarded(context.bus.tell, [clobber], error)
    raise error


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


def report(context: Context, found: list[Clobber], *, stops: bool = False) -> None:
    """Report reads that got other bytes. Raises ClobberError if that `stops` the program, and where noclobber stops
    writes or preserves bytes, and could do neither."""
    stopped = ClobberError(clobbers.CHANGED) if stops or (context.strict and found) else None
    context.core.guarded(context.bus.tell, found, stopped)
    if stopped is not None:
        raise stopped


# -- the end of a backward call ----------------------------------------------------------------------------------------


def arm(context: Context, way: Way) -> None:
    """At the end of each backward call, make the comparisons that are left, and explain an error that it raised."""

    def ended(call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        stopped = _settle(context, call) if call.later else None
        if isinstance(error, RuntimeError):
            _has_failed(context, call, error)
        return stopped

    context.calls.watch_ends(way, ended)


def _has_failed(context: Context, call: Backward, error: RuntimeError) -> None:
    """Explain an error that a backward call raised: report the other stale saves of its graph, or what was freed."""
    event, message = refusals.remembered(error), str(error)
    if torch_messages.is_stale(message) and not isinstance(event, Refusal):
        seen = error.handles if isinstance(error, ClobberError) else set[int]()
        others = clobbers.stale_saves(call, context.memory, seen)
        if event is None and others:
            refusals.remember(error, others[0])
        context.bus.tell(others, error)
    elif event is None and refusals.is_freed(message):
        refusals.remember(error, refusals.refusal_of_freed(message, call, context.memory))
    elif event is None and message == refusals.DETACHED:
        refusals.remember(error, refusals.refusal_of_detached(call, context.memory))


def _settle(context: Context, call: Backward) -> ClobberError | None:
    """Compare all fingerprints of a call that stayed on a device, at once. The program waits for the device only here.

    Reports the saves that differ. Returns the error to raise; None if there is none.
    """
    waiting, call.later = sorted(call.later, key=lambda later: later.order), []
    found = clobbers.settled(waiting)
    stopped = ClobberError(clobbers.CHANGED) if context.strict and found else None
    context.bus.tell([clobber for clobber in found if clobber is not None], stopped, call)
    return stopped
