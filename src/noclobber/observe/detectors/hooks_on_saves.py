"""Hooks that the program registers on one save (`grad_fn._raw_saved_self.register_hooks`) take the place of ours."""

from __future__ import annotations

from typing import Any

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.save_hooks import Handle, Suspect
from noclobber.observe.torch_api import graph, native_saves, private

_NOTHING = torch.empty(0, device="cpu")


def arm(context: Context, way: Way) -> None:
    """Let the program register hooks on saves that have ours already, until the recorder disarms.

    A save takes one pair of hooks and is not checked from then on. Theirs go on another save of PyTorch's own, which
    what our pack hook returned leads to (torch 2.13; tests/observe/detectors/test_registered_hooks.py).
    """
    native = private.lookup("_C._autograd.SavedTensor.register_hooks")
    ours, another = way.entry(_ours, also_off=True), way.entry(_another, also_off=True)

    def register_hooks(saved: Any, *args: Any, **kwargs: Any) -> None:
        handle = ours(saved)
        theirs = None if handle is None else another(handle)
        if handle is None or theirs is None:
            native(saved, *args, **kwargs)
            return
        native(native_saves.raw(theirs), *args, **kwargs)
        suspect = Suspect(_NOTHING._version)
        suspect.theirs = theirs
        # Their hooks decide what becomes of the memory.
        handle.alias, handle.version, handle.digest, handle.shown = _NOTHING, suspect, None, None
        way.guarded(lambda: _taken_over(context))

    way.patches.put(private.lookup("_C._autograd.SavedTensor"), "register_hooks", register_hooks)


def _ours(saved: Any) -> Handle | None:
    """What our pack hook returned for a save; None where it packed it not, or where theirs have taken over."""
    handle = graph.content_of(saved)
    if not isinstance(handle, Handle) or (isinstance(handle.version, Suspect) and handle.version.theirs is not None):
        return None
    return handle


def _another(handle: Handle) -> Any:
    with native_saves.without_hooks():
        return native_saves.make(handle.alias)


def _taken_over(context: Context) -> None:
    context.python_in_backward = True
    context.live.file_anew()
    context.bus.not_seen("saves that the program registered its own hooks on")
