"""PyTorch's own saves, made without a node: to unpack at any time, and to learn what PyTorch says of a stale save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.nn.parameter import is_lazy

from noclobber.observe.torch_api import before_2_12
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.dispatch.spare_key import unlogged
from noclobber.observe.torch_api.tensors import tensor_state


class Save(Protocol):
    """A save that `make` made."""

    def unpack(self) -> torch.Tensor:
        """Return the saved tensor. Raises what PyTorch raises of a stale save."""


def make(tensor: torch.Tensor) -> Save:
    """Return a save of PyTorch's own, like the one a node makes of an input.

    Its `unpack` gives the tensor at its place in the graph.
    """
    if before_2_12.is_used():
        with unlogged(), modes.no_modes(), modes.plain():
            return before_2_12.SavedByNode(tensor)
    return torch._C._autograd._make_saved_tensor(tensor, is_output=False)


def connected(tensor: torch.Tensor) -> Save | None:
    """Return a save that keeps a tensor's place in the graph; None of a tensor whose memory was made in inference mode,
    of which PyTorch makes no save (torch 2.13; tests/observe/preserve/test_preserve_stashes.py)."""
    return None if is_lazy(tensor) or tensor.is_inference() else make(tensor)


def said_of_a_stale(tensor: torch.Tensor, current: int, expected: int, made_by: str = "") -> str:
    """Return what PyTorch says of a save of this tensor at another version than expected. `made_by` is what it says of
    the node that made the tensor.

    Raises NotImplementedError where PyTorch raises that instead: of a jagged tensor (torch 2.13; test_nested.py).
    """
    with modes.aside(), without_hooks():
        sample = _like(tensor)
        saved = make(sample)
        torch.autograd.graph.increment_version(sample)
        try:
            saved.unpack()
        except NotImplementedError:
            raise
        except RuntimeError as error:
            said, _, rest = str(error).rpartition(" is at version 1; expected version 0 instead.")
            return f"{said}{made_by} is at version {current}; expected version {expected} instead.{rest}"
    raise AssertionError("torch unpacks a stale save")


def said_of_a_view(*, several: bool) -> str:
    """Return what PyTorch says of a view outside of the graph, in place of its node, once its base is in the graph.

    The view is one of `several`, or else it was made with gradients off (torch 2.13; test_never_wrong.py).
    """
    with modes.aside(), without_hooks():
        base, tracked = torch.zeros(1), torch.zeros(1, requires_grad=True)
        with torch.set_grad_enabled(several):
            view = base.unbind()[0]
        with torch.enable_grad():
            base.mul_(tracked)
        try:
            return f"the node of {view.grad_fn}"
        except RuntimeError as error:
            return str(error)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same type and shape with its own version counter."""
    try:
        return tensor_state.take(tensor)
    except RuntimeError:  # a subclass that cannot be used without its mode (FunctionalTensor of torch 2.10 to 2.12)
        return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def raw(save: Save) -> object:
    """Return PyTorch's SavedTensor of a save that `make` made."""
    return getattr(save, "raw", save)


@contextmanager
def without_hooks() -> Iterator[None]:
    """Let PyTorch keep what it saves as it is, whatever hooks this thread has."""
    taken = []
    while (top := hook_stack.top_hooks(True)) is not None:
        hook_stack.pop_hooks()
        taken.append(top)
    try:
        yield
    finally:
        for pair in reversed(taken):
            hook_stack.push_hooks(*pair)
