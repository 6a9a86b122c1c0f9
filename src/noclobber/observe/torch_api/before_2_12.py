"""What only torch 2.10 and 2.11 need. When they leave the supported range, this file goes, with all that names it."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch.autograd.function import FunctionCtx

from noclobber.observe.torch_api.frames import passed_over

_PROBE = "noclobber: a probe"


@cache
def is_used() -> bool:
    """Return True on torch 2.10 and 2.11."""
    return not hasattr(torch._C._autograd, "_make_saved_tensor")


def know_collectives() -> None:
    """Let collectives of a process group run on tensors without values: later releases know how their results look."""
    if is_used():
        importlib.import_module("torch.distributed._tools.fake_collectives")


def count(thing: object, put_aside: Callable[[str, object], None]) -> None:
    """Add the reference to a `thing` that `put_aside` (`_stash_obj_in_tls`) does not take.

    It releases one in the end all the same. Python would then free an object that is still in use
    (tests/observe/torch_api/test_releases.py).
    """
    if is_used() and _takes_none(put_aside):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@cache
def _takes_none(put_aside: Callable[[str, object], None]) -> bool:
    probe = object()
    before = sys.getrefcount(probe)
    put_aside(_PROBE, probe)
    takes_none = sys.getrefcount(probe) == before
    if takes_none:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    put_aside(_PROBE, None)
    return takes_none


class SavedByNode:
    """A save of PyTorch's own: only a node can make one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        apply = vars(torch._C._FunctionBase)["apply"].__get__(None, _Saving)  # past noclobber's wrapper of `apply`
        in_transforms = cast(Any, torch)._functorch.utils.enable_single_level_autograd_function
        with torch.enable_grad(), in_transforms():
            # Keep the result, not its node: the node lives as long as the result. The tensor goes in inside a list: of
            # an input PyTorch wants the sizes, which a nested tensor does not have, and the tangent.
            self._made = apply([tensor], torch.empty(0, requires_grad=True))

    @property
    def raw(self) -> object:
        """PyTorch's SavedTensor."""
        return self._made.grad_fn._raw_saved_tensors[0]

    @passed_over
    def unpack(self) -> torch.Tensor:
        (tensor,) = _saved_tensors().__get__(self._made.grad_fn)
        return cast(torch.Tensor, tensor)


class _Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, saved: list[torch.Tensor], connected: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*saved)
        return connected.new_empty(0)


def _saved_tensors() -> Any:
    return cast(Any, torch._C._FunctionBase).saved_tensors


def on_arguments(
    put: Callable[[Any, str, object], object],
    saved_by: Callable[[Any, tuple[object, ...]], object],
    instead: Callable[[Any, tuple[object, ...]], tuple[object, ...] | None],
) -> None:
    """Replace what the Function does that saves the arguments of a checkpointed region, and gives them all at once.

    `saved_by` is called with its node and the arguments. `instead` is called with the node and what PyTorch unpacks,
    and returns what the region gets in its place; None for nothing else.
    """
    function = cast(Any, torch.utils.checkpoint)._NoopSaveInputs
    save, unpacked = function.apply, _saved_tensors()

    def apply(*args: object) -> object:
        result = save(*args)
        saved_by(result.grad_fn, args)
        return result

    def saved_tensors(node: Any) -> tuple[object, ...]:
        tensors: tuple[object, ...] = unpacked.__get__(node)
        return instead(node, tensors) or tensors

    put(function, "apply", staticmethod(apply))
    put(function._backward_cls, "saved_tensors", property(saved_tensors))
