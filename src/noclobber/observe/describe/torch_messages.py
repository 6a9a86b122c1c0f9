"""PyTorch's message for a stale save, which it does not raise under hooks, and the producer that the message names."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from noclobber.observe.core.seen.handles import Argument, Handle, OfMadeAside, OfOneOfSeveral, OfView
from noclobber.observe.core.seen.records import Record, reading
from noclobber.observe.torch_api import before_2_12
from noclobber.observe.torch_api.autograd import graph, native_saves

_NAMES_IN_FULL = torch.__version__ < "2.13"
"""Whether PyTorch says "AddBackward0" and not "Add" in this error."""


def is_stale(message: str) -> bool:
    """Return True for the error of PyTorch's version check."""
    return "variables needed for gradient computation has been modified by an inplace operation" in message


def stale_message(tensor: torch.Tensor, producer: tuple[str, int] | None, current: int, expected: int) -> str:
    """Return PyTorch's message for a stale save. Raises NotImplementedError if PyTorch raises that instead."""
    made_by = f", which is output {producer[1]} of {_shown(producer[0])}," if producer is not None else ""
    return native_saves.said_of_a_stale(tensor, current, expected, made_by)


def _shown(node: str) -> str:
    if _NAMES_IN_FULL:
        return node
    return re.sub(r"Backward(\d*)$", lambda match: match[1] if match[1] != "0" else "", node)


def producer(handle: Handle, node: Any, field: str, *, output: bool, last: Record | None) -> tuple[str, int] | None:
    """Return the node and output that PyTorch names in its message; None for a leaf.

    For an input this is what made the tensor last, as of now; PyTorch keeps the tensor, noclobber does not. If it is
    gone, it is what made the tensor when it was saved, or the node that reads, if its own operator was the `last` to
    write (`h.mul_(h)`). A view whose base was written since gets the name of the node that autograd would make for it.
    Raises RuntimeError if PyTorch refuses to name it: one of several views, or a view that was made with gradients off.
    """
    number = graph.output_of(node, field) if output else None
    if number is not None and number < len(node._input_metadata):
        return node.name(), number  # results without a gradient are counted last, and saved like an input
    tensor = handle.tensor()
    detached = handle.suspect is not None and handle.suspect.detached
    if tensor is not None and tensor.grad_fn is None and node is not None and detached:
        # The node of a custom Function stands in for the node that is lost.
        by_node = before_2_12.is_used() and isinstance(handle, Argument)
        return "_NoopSaveInputsBackward" if by_node else node.name(), 0
    if tensor is not None:
        return None if tensor.grad_fn is None else (tensor.grad_fn.name(), tensor.output_nr)
    made, number = graph.source_of(node, field)
    if last is not None and _wrote(node, last, made, handle):
        return ("AsStridedBackward0", 0) if type(handle) is OfView else (node.name(), 0)
    of_function = handle.suspect is not None and handle.suspect.of_function
    if made is not None and of_function and isinstance(_first_of_views(made), BackwardCFunction):
        raise RuntimeError(_OF_FUNCTION.format(number=number, name=_shown(made.name())))
    if made is None and (named := _named_since(handle)) is not None:
        if isinstance(handle, OfMadeAside | OfOneOfSeveral):
            raise RuntimeError(native_saves.said_of_a_view(several=isinstance(handle, OfOneOfSeveral)))
        return named
    if made is None or made._sequence_nr() == graph.UNNUMBERED:
        return None
    if _first_of_views(made).name() in graph.MANY_VIEWS:
        raise RuntimeError(_MANY.format(number=number, name=_shown(made.name())))
    is_view = made.name() in graph.VIEWS and not _is_recomputed(made)
    return ("AsStridedBackward0", 0) if is_view else (made.name(), number)


def _is_recomputed(made: Node) -> bool:
    """Return True if a checkpointed region keeps what a node made: what PyTorch unpacks of a region has this node, and
    is no view, so that its node stays the same (torch 2.13; tests/observe/checkpoint/test_checkpoint_drift.py)."""
    readers = (one for one in graph.walk(graph.roots_of(reading().outputs)) if (made, 0) in one.next_functions)
    return any(
        hasattr(graph.content(save), "noclobber_save") for one in readers for save in graph.saves_of_or_gone(one)
    )


def is_by_its_own_operator(write: Record, handle: Handle) -> bool:
    """Return True if the operator that made a save is the one that wrote: `h.mul_(h)`.

    The write is seen before the node is made (torch 2.13; test_own_save.py).
    """
    return (write.node, write.place) == (handle.node, handle.place)


def _wrote(node: Node, last: Record, made: Node | None, handle: Handle) -> bool:
    """Return True if the operator of `node` wrote in place, as `last`, what it has saved.

    A write to a detached alias makes the same record, but its node does not follow by the written argument on what had
    `made` the saved tensor. Around the node of a write through a view autograd puts one that stands for both.
    """
    if last.untracked or not is_by_its_own_operator(last, handle):
        return False
    if type(handle) is OfView:
        return stands_for_a_view(node)
    by_number = made is not None and bool(node._sequence_nr() == handle.node)
    return by_number and graph.source_of(node, "self")[0] is made


def stands_for_a_view(node: Node) -> bool:
    """Return True for the node that autograd puts around that of a write through a view."""
    return bool(node.name().endswith("CopySlices"))


def _first_of_views(node: Node) -> Node:
    """Return the node that made the tensor at the start of a chain of views."""
    while node.name() in graph.VIEWS and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


def _named_since(handle: Handle) -> tuple[str, int] | None:
    """Return the node and output of a tensor that is gone and entered the graph after its save; None if it did not.

    A view gets a node of its own if its base enters the graph.
    """
    suspect = handle.suspect
    if suspect is None:
        return None
    if suspect.made is not None:
        return suspect.made
    base = suspect.base() if suspect.base is not None else None
    return ("AsStridedBackward0", 0) if base is not None and base.grad_fn is not None else None


_REFUSED = "Output {number} of {name} is a view and its base or another view of its base has been modified inplace. "
_OF_FUNCTION = _REFUSED + (
    "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to "
    "handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect "
    "gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
)
_MANY = _REFUSED + (
    "This view is the output of a function that returns multiple views. Such functions do not allow the output views "
    "to be modified inplace. You should replace the inplace operation by an out-of-place one."
)


def made_by(tensor: torch.Tensor, node: object) -> bool | None:
    """Return True if a node made a tensor; None if PyTorch refuses to say."""
    try:
        return bool(tensor.grad_fn is node)
    except RuntimeError:
        return None


def produced(tensor: torch.Tensor) -> tuple[str, int] | None:
    """Return the node and output that made a tensor; None for a leaf, or if PyTorch refuses.

    PyTorch itself asks for the node before it raises, so asking changes nothing.
    """
    node = graph.maker_of(tensor)
    return None if node is None else (node.name(), tensor.output_nr)
