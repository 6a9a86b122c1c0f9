"""Self-tests of what PyTorch's private names mean, not only of whether they exist. Each runs once in a process.

A release may keep a name but change what it counts, or the order of arguments. Then what needs the name is not armed.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.dispatch import modes


def of_saves() -> None:
    """Raise UnsupportedTorch if saved-tensor hooks, numbers of nodes or arguments of the engine mean something else.

    Nothing here runs the engine: with a GPU it starts threads, and a process that has them cannot train in a fork.
    """
    if not modes.transforms_active():  # inside torch.func hooks are forbidden; the next arming runs the test
        _of_saves()


@cache
def _of_saves() -> None:
    seen: list[tuple[float, int]] = []
    packed = object()

    def pack(tensor: torch.Tensor) -> object:
        seen.append((tensor.item(), engine_state.next_node() - 1))
        return packed

    with modes.trial():
        x = torch.zeros((), device="cpu", requires_grad=True)
        hook_stack.push_hooks(pack, lambda _: x)
        try:
            number = engine_state.next_node()
            y: Any = x.exp()
            later: Any = x * 1
        finally:
            hook_stack.pop_hooks()
        node = y.grad_fn
        _holds(seen == [(1.0, number)], "saved-tensor hooks come after the operator, in the node with the last number")
        _holds(node._sequence_nr() == number, "the next node of a thread gets the number that is foretold")
        _holds(later.grad_fn._sequence_nr() > number, "numbers of nodes rise")
        _holds(node._raw_saved_result.data is packed, "a node keeps what the pack hook returned")
        _of_engine(x)


def _of_engine(x: torch.Tensor) -> None:
    """Run copies of torch.autograd's functions with a fake engine, and check how they call it."""
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def engine(*args: object, **kwargs: object) -> tuple[()]:
        calls.append((args, kwargs))
        return ()

    def as_given(outputs: object, gradients: object, *_: object, **__: object) -> object:
        return gradients  # PyTorch's own function imports sympy, which takes half a second

    copied = {**vars(torch.autograd), "_engine_run_backward": engine, "_make_grads": as_given}
    gradient = torch.ones((), device="cpu")
    grad, backward = torch.autograd.grad, torch.autograd.backward
    if any(getattr(function, "__globals__", None) is not vars(torch.autograd) for function in (grad, backward)):
        return  # the program has replaced them
    FunctionType(grad.__code__, copied, "grad", grad.__defaults__)(
        x, (x,), gradient, retain_graph=False, create_graph=True
    )
    FunctionType(backward.__code__, copied, "backward", backward.__defaults__)(x, gradient, False, True, inputs=(x,))
    for (args, kwargs), accumulates in zip(calls, (False, True), strict=True):
        outputs, gradients, _, create_graph, inputs = args[:5]
        _holds(
            outputs == (x,) and gradients == (gradient,) and create_graph is True and inputs == (x,),
            "the engine gets outputs, gradients, retain_graph, create_graph and inputs, in this order",
        )
        _holds(kwargs.get("accumulate_grad") is accumulates, "the engine is told by name whether to accumulate")


@cache
def of_checkpoints() -> None:
    """Raise UnsupportedTorch if PyTorch's record of a checkpointed region lacks a field that noclobber reads."""
    try:
        frame = private.lookup("utils.checkpoint._CheckpointFrame")(None, True, None, None)
    except TypeError as failure:
        raise UnsupportedTorch(f"torch {torch.__version__} has changed `_CheckpointFrame`: {failure}") from None
    for field in ("recompute_fn", "weak_holders", "recomputed", "early_stop", "forward_completed"):
        _holds(field in vars(frame), f"a record of a checkpointed region has `{field}`")
    holder = private.lookup("utils.checkpoint._Holder")()
    _holds("handles" in vars(holder), "a region holds for each save an object that takes attributes, with `handles`")
    tensor = torch.empty(0, device="cpu")
    kept = private.lookup("utils.checkpoint._VersionWrapper")(tensor)
    _holds(kept.val is tensor and kept.get_val(False) is tensor, "a selective checkpoint keeps a tensor as `val`")


def _holds(fact: bool, what: str) -> None:
    if not fact:
        raise UnsupportedTorch(f"torch {torch.__version__} has changed what noclobber stands on: {what}")
