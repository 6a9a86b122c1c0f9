"""Hooks that the program registers on one save (`grad_fn._raw_saved_self.register_hooks`) replace noclobber's."""

from __future__ import annotations

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, Suspect
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import graph, native_saves

_NOTHING = torch.empty(0, device="cpu")


def arm(context: Context, way: Way) -> None:
    """Let the program register hooks on saves that have noclobber's hooks already, until the recorder disarms.

    A save takes one pair of hooks only, and PyTorch does not check its version from then on. The program's hooks go on
    a second save, made by PyTorch itself, which noclobber's handle refers to (torch 2.13;
    tests/observe/transparent/test_registered_hooks.py).
    """
    native = private.lookup("_C._autograd.SavedTensor.register_hooks")
    ours = way.entry(_ours, also_off=True)
    another = way.entry(native_saves.without_hooks()(native_saves.make), also_off=True)

    def register_hooks(saved: object, *args: object, **kwargs: object) -> None:
        handle = ours(saved)
        theirs = None if handle is None else another(handle.alias)
        if handle is None or theirs is None:
            native(saved, *args, **kwargs)
            return
        native(native_saves.raw(theirs), *args, **kwargs)
        handle.suspect = Suspect(theirs=theirs)
        # The handle lets the memory go: from now on the program's hooks decide what happens to it.
        old, handle.alias, handle.version = handle.alias, _NOTHING, _NOTHING._version
        handle.digest = handle.shown = None
        way.guarded(lambda: _taken_over(context, handle, old))

    way.patches.put(private.lookup("_C._autograd.SavedTensor"), "register_hooks", register_hooks)


def _ours(saved: object) -> Handle | None:
    """Return noclobber's handle of a save. None where noclobber did not pack it, or where the program's hooks have
    taken over already."""
    handle = graph.content_of(saved)
    if not isinstance(handle, Handle) or (handle.suspect is not None and handle.suspect.theirs is not None):
        return None
    return handle


def _taken_over(context: Context, handle: Handle, old: torch.Tensor) -> None:
    context.python_in_backward = True
    context.live.moved(handle, old)
    context.bus.not_seen("saves that the program registered its own hooks on")
