"""What PyTorch keeps of one tensor beside its bytes: data, identity, version, how a view was made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import GetSetDescriptorType, ModuleType
from typing import TypeVar

import torch

from noclobber.observe.torch_api import private

C: ModuleType = torch._C
Thing = TypeVar("Thing")
_data: GetSetDescriptorType = private.lookup("_C.TensorBase.data")
_cdata: GetSetDescriptorType = private.lookup("_C.TensorBase._cdata")
use_count: Callable[[torch.Tensor], int] = private.lookup("_C.TensorBase._use_count")
"""Returns how many holders a tensor has. All Python references together count as one."""
detach: Callable[..., torch.Tensor] = private.lookup("_C.TensorBase.detach")
"""Makes an alias outside of the graph, which `Tensor.detach` reports as one that the program takes
(takers/other_memory.py)."""
_is_wrapped: Callable[[torch.Tensor], bool] = private.lookup("_C._functorch.is_functorch_wrapped_tensor")
_unwrapped: Callable[[torch.Tensor], torch.Tensor] = private.lookup("_C._functorch.get_unwrapped")
_is_batched: Callable[[torch.Tensor], bool] = private.lookup("_C._functorch.is_batchedtensor")


class Weak(weakref.ref[Thing]):
    """A weak reference that noclobber makes to a tensor of the program. The program does not notice it
    (transparent/checks_of_swaps.py)."""

    __slots__ = ()


def tensors_in(*values: object) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, and those that lie in lists, tuples and dicts of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor is a view of, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def is_computed(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is an output in a graph and no view.

    The node of a view must not be read: reading `grad_fn` of a view can make a failing program pass (torch 2.13;
    tests/observe/test_never_wrong.py). `_is_view()` is a call, which an uninitialised parameter refuses (torch 2.13;
    tests/observe/core/test_exotic.py).
    """
    return tensor.requires_grad and tensor._base is None and tensor.grad_fn is not None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return True for a leaf. A view is asked for its base and not for its node, which PyTorch may refuse."""
    base = tensor._base
    return tensor.is_leaf if base is None else not base.requires_grad


def take(tensor: torch.Tensor) -> torch.Tensor:
    """Return what `tensor.data` gives."""
    taken: torch.Tensor = _data.__get__(tensor)
    return taken


def give(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Do what `tensor.data = data` does."""
    _data.__set__(tensor, data)


def identity(tensor: torch.Tensor) -> int:
    """Return a number that is unique to a tensor while the tensor lives, whatever Python object stands for it.

    The number may be used again after the tensor died.
    """
    return int(_cdata.__get__(tensor))


def is_view_of_function(tensor: torch.Tensor) -> bool:
    """Return True if a custom Function returned this tensor as a view, which PyTorch marks as not to be written."""
    return creation_of(tensor) == "IN_CUSTOM_FUNCTION"


def creation_of(tensor: torch.Tensor) -> str:
    """Return how a view was made, by autograd's name, "MULTI_OUTPUT_NODE"; empty for what autograd knows as no view."""
    # Of a detach, which is a view without a base, PyTorch raises (torch 2.13).
    return _CREATIONS[_creation(tensor).value] if _creation is not None and tensor._base is not None else ""


_creation = getattr(C._autograd, "_get_creation_meta", None)

_CREATIONS: dict[int, str] = (
    {} if _creation is None else {one.value: name for name, one in C._autograd.CreationMeta.__members__.items()}
)
"""The names by value: asking a value for its name takes 2 microseconds (torch 2.13)."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor below the wrappers of torch.func."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    return tensor


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return True if `torch.vmap` gives each sample a tensor of its own here."""
    while _is_wrapped(tensor):
        if _is_batched(tensor):
            return True
        tensor = _unwrapped(tensor)
    return False


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the version counter; None for an inference tensor, which has none."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


def share_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors have the same version counter, which moves for a moment and is put back."""
    before, of_other = version_of(one), version_of(other)
    if before is None or before != of_other:
        return False
    set_version(one, before + 1)
    try:
        return version_of(other) != of_other
    finally:
        set_version(one, before)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor that has one, and so that of all its views."""
    private.lookup("_C._autograd._unsafe_set_version_counter")([tensor], [version])
