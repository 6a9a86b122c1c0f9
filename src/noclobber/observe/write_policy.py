"""Decides what happens when a write meets live saves of its storage: note it, preserve the bytes, or stop the write."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch

from noclobber.model.error import ClobberError
from noclobber.observe.core import save_hooks
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Record
from noclobber.observe.core.save_hooks import Handle, OfView, Suspect, is_result
from noclobber.observe.core.sites import caller
from noclobber.observe.describe import clobbers, refusals
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.torch_api import private
from noclobber.observe.witness.digests import fingerprint
from noclobber.observe.witness.layout import geometry, may_touch, touch

MOST_WRITES = 16
"""How many writes are kept for one save: the first ones, and the last."""


def meet(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> Callable[[], object] | None:
    """Note a write with the saves that it meets. Returns what to call after the write; None if there is nothing to do.

    Raises ClobberError where noclobber stops writes.

    A fingerprint is taken of a save whose version counter may not move. A tensor in the graph shares the counter of its
    saves; a tensor made from `.data` or wrapped in a Parameter may have its own.
    """
    preserving = context.thread.preserving
    if preserving:
        noted = noted._replace(written=noted.written._replace(uncounted=True))
    if context.contents is not None:
        context.contents.begins_to_write(noted.key)  # also where no operator is seen: optimizers, `.data`
    save_hooks.note_base(handles, tensor)
    of_function = not torch.is_grad_enabled() and private.is_view_of_function(tensor)
    apart = noted.written.uncounted or not tensor.requires_grad or type(tensor) is torch.nn.Parameter
    for handle in handles:
        marked = handle.suspected()
        marked.of_function |= of_function and isinstance(handle, OfView)
        if apart and handle.digest is None and may_touch(handle.alias, noted.geometry):
            with private.no_modes():
                handle.digest = fingerprint(handle.alias)
        written = marked.writes
        entry = (noted, handle.alias._version)
        if len(written) < MOST_WRITES:
            written.append(entry)
        else:
            written[-1] = entry
    context.look(handles, tensor, noted)
    if context.keeping:
        copy_before_write.keep(context, handles, noted)
    elif context.stop_writes and not (preserving or noted.written.is_statistics or noted.written.is_collective):
        _stop(context, handles, tensor, noted)
    if tensor.requires_grad or not torch.is_grad_enabled():
        return None
    return context.core.entry(_entering(handles, tensor))


def detached(context: Context, tensor: torch.Tensor) -> bool:
    """Note a tensor that is about to be detached in place with its saves, on whatever memory they are; return True.

    PyTorch refuses to unpack an input that was detached after its save (saved_variable.cpp). It refuses to detach a
    view at once, and reading the node of a view may raise another error.
    """
    producer = None if tensor._is_view() else tensor.grad_fn
    if producer is not None:
        context.live.all()  # every save has a handle then, also one that the native part has taken
    where = save_hooks.Detached(caller(1))
    for handle in weakref.getweakrefs(tensor) if producer is not None else ():
        if isinstance(handle, Handle) and not context.core.guarded(partial(is_result, handle, producer)):
            handle.suspected().detached = where
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
            handle.suspect = Suspect()
            handle.suspect.detached = save_hooks.Detached(None)


def _entering(handles: list[Handle], tensor: torch.Tensor) -> Callable[[], None]:
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


def _stop(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> None:
    """Raise ClobberError if a write is about to change bytes of these saves."""
    struck = [handle for handle in handles if touch(geometry(handle.alias), noted.geometry)]
    # What a policy keeps is left to the second run of its region, which may compute the same from changed bytes.
    found = [clobbers.clobber_to_come(one, tensor, noted) for one in struck if one.unchecked != "policy"]
    if found:
        error = ClobberError(clobbers.STOPPED)
        refusals.remember(error, found[0])
        context.bus.tell(found, error)
        raise error
