"""PyTorch's own words for a stale save, which hooks make it leave unsaid, and what it names as the producer."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.observe.core.save_hooks import ArgumentOfNode, Handle, Suspect
from noclobber.observe.torch_api import graph, native_saves

_NAMES_IN_FULL = torch.__version__ < "2.13"
"""Whether PyTorch names a node "AddBackward0" in this error, and not "Add"."""


def is_stale(message: str) -> bool:
    """Whether this is the error of PyTorch's version check."""
    return "variables needed for gradient computation has been modified by an inplace operation" in message


def stale_message(tensor: torch.Tensor, producer: tuple[str, int] | None, current: int, expected: int) -> str:
    """PyTorch's own words for a stale save, which hooks make it leave unsaid. Raises what it raises in their place."""
    made_by = f", which is output {producer[1]} of {_shown(producer[0])}," if producer is not None else ""
    said, _, rest = native_saves.said_of_a_stale(tensor).rpartition(" is at version 1; expected version 0 instead.")
    return f"{said}{made_by} is at version {current}; expected version {expected} instead.{rest}"


def _shown(node: str) -> str:
    if _NAMES_IN_FULL:
        return node
    return re.sub(r"Backward(\d*)$", lambda match: match[1] if match[1] != "0" else "", node)


def producer(handle: Handle, node: Any, field: str, *, output: bool) -> tuple[str, int] | None:
    """The node and output that PyTorch names: of an input what made it last, as it stands now; None for a leaf.

    Where the tensor itself is gone, what made it when it was saved; a view, whose base was written since, is named by
    the node that autograd would make for it anew. Raises RuntimeError where PyTorch refuses to say: a view of several.
    """
    number = graph.output_of(node, field) if output else None
    if number is not None and graph.has_gradient(node, number):
        return node.name(), number  # a result without a gradient is kept as an input is
    tensor = handle.tensor()
    if tensor is not None and tensor.grad_fn is None and node is not None and _was_detached(handle):
        # A custom Function's own node stands in for the one that is lost.
        return "_NoopSaveInputsBackward" if isinstance(handle, ArgumentOfNode) else node.name(), 0
    if tensor is not None:
        return None if tensor.grad_fn is None else (tensor.grad_fn.name(), tensor.output_nr)
    made, number = graph.source_of(node, field)
    of_function = isinstance(handle.version, Suspect) and handle.version.of_function
    if made is not None and of_function and isinstance(_first_of_views(made), BackwardCFunction):
        raise RuntimeError(_OF_FUNCTION.format(number=number, name=_shown(made.name())))
    if made is None and isinstance(handle.version, Suspect) and handle.version.made is not None:
        return handle.version.made
    if made is None and _is_view_of_tracked(handle):
        return "AsStridedBackward0", 0
    if made is None or made._sequence_nr() == graph.UNNUMBERED:
        return None
    if _first_of_views(made).name() in _MANY_VIEWS:
        raise RuntimeError(_MANY.format(number=number, name=_shown(made.name())))
    return ("AsStridedBackward0", 0) if made.name() in _VIEWS else (made.name(), number)


def _first_of_views(node: Any) -> Any:
    """What made the tensor that a row of views begins from."""
    while node.name() in _VIEWS and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


def _is_view_of_tracked(handle: Handle) -> bool:
    """Whether a tensor that is gone was a view of one that entered the graph since: then autograd makes it a node."""
    base = handle.version.base() if isinstance(handle.version, Suspect) and handle.version.base is not None else None
    return base is not None and base.grad_fn is not None


def _was_detached(handle: Handle) -> bool:
    return isinstance(handle.version, Suspect) and handle.version.refuses is not None


_MANY_VIEWS = ("SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0")
_OF_FUNCTION = (
    "Output {number} of {name} is a view and its base or another view of its base has been modified inplace. "
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to "
    "handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)
_MANY = (
    "Output {number} of {name} is a view and its base or another view of its base has been modified inplace. "
    "This view is the output of a function that returns multiple views. Such functions do not allow the output views "
    "to be modified inplace. You should replace the inplace operation by an out-of-place one."
)


_VIEWS = frozenset(
    f"{name}Backward{number}"
    for name in """
    T Transpose Permute Select Slice View Alias AsStrided Diagonal Expand Narrow Real Imag ReshapeAlias Squeeze
    Unfold Unsqueeze ViewAsComplex ViewAsReal
    """.split()  # noqa: SIM905
    for number in range(4)
)


def made_by(tensor: torch.Tensor, node: Any) -> bool | None:
    """Whether a node made a tensor; None where PyTorch refuses to say."""
    try:
        return bool(tensor.grad_fn is node)
    except RuntimeError:
        return None


def produced(tensor: torch.Tensor) -> tuple[str, int] | None:
    """What made a tensor; asking is what PyTorch does itself before it raises."""
    try:
        return None if tensor.grad_fn is None else (tensor.grad_fn.name(), tensor.output_nr)
    except RuntimeError:
        return None
