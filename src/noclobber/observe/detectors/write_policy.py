"""What happens when a write meets live saves of its storage: it is noted with each, made harmless, or stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from noclobber.model.error import ClobberError
from noclobber.observe.core import save_hooks
from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import fingerprint
from noclobber.observe.core.records import Record
from noclobber.observe.core.save_hooks import Handle, OfView, Suspect, is_result
from noclobber.observe.describe import clobbers, refusals
from noclobber.observe.preserve import copy_before_write
from noclobber.observe.torch_api import private

MOST_WRITES = 16
"""Writes kept for one save, the first and the last ones."""


def meet(context: Context, handles: list[Handle], tensor: torch.Tensor, noted: Record) -> Callable[[], object] | None:
    """Note a write with the saves that it met; what it returns is to be called after the write.

    Raises ClobberError where writes are to be stopped.

    The bytes are remembered where the save's version counter may stay still. A tensor in the graph shares the counter
    of its saves; one made from `.data` or wrapped in a Parameter may have its own.
    """
    # PyTorch refuses to unpack an input that was detached in place after its save (saved_variable.cpp). It refuses the
    # write to a view at once, and asking that for its node may raise something else.
    producer = tensor.grad_fn if noted.written.detaches and not tensor._is_view() else None
    for handle in handles if producer is not None else ():
        if handle() is tensor and not context.core.guarded(partial(is_result, handle, producer)):
            if not isinstance(handle.version, Suspect):
                handle.version = Suspect(handle.version)
            handle.version.refuses = refusals.DETACHED
    preserving = context.thread.preserving
    if preserving:
        noted = noted._replace(written=noted.written._replace(uncounted=True))
    save_hooks.note_base(handles, tensor)
    of_function = not torch.is_grad_enabled() and private.is_view_of_function(tensor)
    apart = noted.written.uncounted or not tensor.requires_grad or type(tensor) is torch.nn.Parameter
    for handle in handles:
        marked = handle.version
        if not isinstance(marked, Suspect):
            marked = handle.version = Suspect(marked)
        marked.of_function |= of_function and type(handle) is OfView
        if apart and handle.digest is None and clobbers.may_touch(handle.alias, noted.geometry):
            with private.no_modes():
                handle.digest = fingerprint(handle.alias)
        written = marked.writes
        entry = (noted, handle.alias._version)
        if len(written) < MOST_WRITES:
            written.append(entry)
        else:
            written[-1] = entry
    if context.keeping:
        copy_before_write.keep(context, handles, noted)
    elif context.stop_writes and not (preserving or noted.written.is_statistics or noted.written.is_collective):
        _stop(context, handles, noted)
    if tensor.requires_grad or not torch.is_grad_enabled():
        return None
    return context.core.entry(_entering(handles, tensor))


def _entering(handles: list[Handle], tensor: torch.Tensor) -> Callable[[], None]:
    """What notes, once a tensor that was not in the graph has been overwritten, what made it if it is by now.

    PyTorch keeps the tensor that it saved, and names what made that last; a handle may be all that is left of it.
    """

    versions = [handle.alias._version for handle in handles]

    def written() -> None:
        if not tensor.requires_grad or tensor._is_view() or tensor.grad_fn is None:
            return
        for handle, version in zip(handles, versions, strict=True):
            # What was written through `.data` has a version counter of its own, and is another tensor.
            if isinstance(handle.version, Suspect) and handle.alias._version != version:
                own = type(handle) is Handle and handle() is tensor
                handle.version.made = (tensor.grad_fn.name(), tensor.output_nr) if own else handle.version.made
                if type(handle) is OfView:
                    handle.version.made = ("AsStridedBackward0", 0)

    return written


def _stop(context: Context, handles: list[Handle], noted: Record) -> None:
    found = [clobber for handle in handles if (clobber := clobbers.clobber_to_come(handle, noted)).writes[0].overlaps]
    if found:
        error = ClobberError(clobbers.STOPPED)
        refusals.remember(error, found[0])
        context.bus.tell(found, error)
        raise error
