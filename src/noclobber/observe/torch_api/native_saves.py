"""Saves of PyTorch's own, made without a node: to be unpacked at will, and to hear what PyTorch says of a stale one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.torch_api.private import aside, lookup, no_modes, unlogged


def make(tensor: torch.Tensor) -> Any:
    """A save of PyTorch's own, as a node makes it of an input: `unpack` gives the tensor at its place in the graph."""
    if hasattr(private.C._autograd, "_make_saved_tensor"):
        return private.C._autograd._make_saved_tensor(tensor, is_output=False)
    return _SavedByNode(tensor)


def said_of_a_stale(tensor: torch.Tensor) -> str:
    """What PyTorch says of a save of this tensor that was overwritten once.

    Raises NotImplementedError where PyTorch comes to that instead: of a jagged tensor (torch 2.13; test_nested.py).
    """
    with aside(), without_hooks():
        sample = _like(tensor)
        saved = make(sample)
        torch.autograd.graph.increment_version(sample)
        try:
            saved.unpack()
        except NotImplementedError:
            raise
        except RuntimeError as error:
            return str(error)
    raise AssertionError("torch unpacks a stale save")


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same type and shape with a version counter of its own."""
    try:
        return private.take(tensor)
    except RuntimeError:  # a subclass that is nothing without its mode (FunctionalTensor of torch 2.10 to 2.12)
        return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


class _SavedByNode:
    """Stands in on torch 2.10 and 2.11, which make a save nowhere but in a node."""

    def __init__(self, tensor: torch.Tensor) -> None:
        apply = vars(lookup("_C._FunctionBase"))["apply"].__get__(None, _Saving)  # past what sees the program's own
        with torch.enable_grad(), unlogged(), no_modes(), private.plain():
            # Not its node: that lives as long as this. An input would be asked for its sizes, which a nested tensor has
            # not, and for its tangent.
            self._made = apply([tensor], torch.empty(0, requires_grad=True))

    @property
    def raw(self) -> Any:
        """The save itself."""
        return self._made.grad_fn._raw_saved_tensors[0]

    @passed_over
    def unpack(self) -> torch.Tensor:
        (tensor,) = lookup("_C._FunctionBase.saved_tensors").__get__(self._made.grad_fn)
        return cast(torch.Tensor, tensor)


class _Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, saved: list[torch.Tensor], connected: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*saved)
        return connected.new_empty(0)


def raw(save: Any) -> Any:
    """PyTorch's SavedTensor of what `make` made."""
    return getattr(save, "raw", save)


@passed_over
def unpacked(save: Any) -> torch.Tensor:
    """What a save of PyTorch's own gives back."""
    tensor: torch.Tensor = save.unpack()
    return tensor


@contextmanager
def without_hooks() -> Iterator[None]:
    """Let PyTorch keep what it saves as it is, whatever hooks this thread has."""
    taken = []
    while (top := private.top_hooks(True)) is not None:
        private.pop_hooks()
        taken.append(top)
    try:
        yield
    finally:
        for pair in reversed(taken):
            private.push_hooks(*pair)
