"""A save is read: whether its version or its bytes are others than when it was saved, and what is then raised."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.error import ClobberError
from noclobber.observe.core import save_hooks
from noclobber.observe.core.fingerprints import Digest, OnDevice, all_known, fingerprint, same
from noclobber.observe.core.records import Backward
from noclobber.observe.core.save_hooks import ArgumentOfNode, Handle, Suspect
from noclobber.observe.describe import clobbers, refusals, torch_messages
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


def read(recorder: Recorder, handle: Handle, digest: Digest, *, silently: bool) -> torch.Tensor | None:
    """A save is unpacked and its version moved, its bytes are others, or a write met it. Raises what PyTorch would
    raise, and where not `silently` what it would not; `digest`: the fingerprint at read, None if it was not taken.

    None where PyTorch, or the program, is to be asked outside of the error boundary (saves.checked).
    """
    alias, version, current = handle.alias, handle.version, int(handle.alias._version)
    if isinstance(version, Suspect) and version.theirs is not None:
        return None
    node, expected = private.current_node(), save_hooks.version_at_save(handle)
    guarded = recorder.core.guarded
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
            guarded(lambda: refusals.remember(error, refusals.refusal_of_read(handle, str(error), recorder.reading())))
            raise error
    if current != expected:
        if not silently and same(handle.digest, fingerprint(alias) if digest is None else digest):
            return alias  # where bytes are preserved: what moved the version was written elsewhere
        try:
            message = torch_messages.stale_message(alias, None, current, expected)
        except NotImplementedError:
            return None
        clobber = guarded(lambda: clobbers.clobber_of(handle, node, recorder.reading(), recorder.memory))
        error = ClobberError(clobber.message if clobber else message)
        error.handles = {id(handle)}
        if clobber is not None:
            refusals.remember(error, clobber)
            guarded(partial(recorder.tell, [clobber], error))
        raise error
    if handle.digest is None:
        return alias
    if digest is None:
        digest = fingerprint(alias)
    if digest is None and isinstance(handle.digest, OnDevice):
        return alias  # it can't be read now
    call = recorder.here()
    if isinstance(digest, OnDevice) and silently and call is not None:
        if clobbers.is_read(handle, node):
            call.later.append(clobbers.later(handle, node, digest, call, recorder.memory))
    elif not same(digest, handle.digest) and clobbers.is_other(handle, node, alias, handle.digest):
        clobber = guarded(lambda: clobbers.clobber_of(handle, node, recorder.reading(), recorder.memory))
        stopped = ClobberError(clobbers.CHANGED) if recorder.strict or not silently else None
        guarded(partial(recorder.tell, [clobber] if clobber else [], stopped))
        if stopped is not None:
            raise stopped
    return alias


def settle(recorder: Recorder, call: Backward) -> ClobberError | None:
    """Compare the fingerprints of a call that stayed on a device, all at once: the program waits for it only here.

    Tells of those that differ, and gives what is to be raised, if anything.
    """
    waiting, call.later = sorted(call.later, key=lambda one: one.order), []
    changed = all_known([one.differs for one in waiting])
    found = [one.tell() for one, differs in zip(waiting, changed, strict=True) if differs]
    stopped = ClobberError(clobbers.CHANGED) if recorder.strict and found else None
    recorder.tell([one for one in found if one is not None], stopped, call)
    return stopped
