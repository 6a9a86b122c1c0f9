"""How a program's own run is made to give what a patch is compared with: right gradients, or the loss alone.

Saves that nobody overwrites, gradients that Python code has to itself, tensors as they were before an activation, or no
reverse mode at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from noclobber.observe.core.custom_backwards import natives
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches

_ACTIVATIONS = (
    "Relu", "LeakyRelu", "Elu", "Celu", "Selu", "Silu", "Mish", "Hardtanh", "Hardswish", "Hardsigmoid", "Threshold",
    "Rrelu", "NativeDropout", "Sigmoid", "Tanh",
)  # fmt: skip
"""How the nodes of operators begin that NC209 is about, and of the like."""


def clone_saves() -> None:
    """Have autograd keep a clone of whatever it saves: the simplest way to right gradients."""
    private.require()
    private.push_hooks(torch.clone, _identity)


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def compile_nothing() -> None:
    """Have `torch.compile` leave functions as they are, so that forward mode and what it stands for see their lines."""
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # read when the compiler is imported
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.config.disable = True


def gradients_off() -> None:
    """Record nothing from now on: writes that autograd forbids go through then, and losses can be compared."""
    torch.set_grad_enabled(False)


def hand_out_clones() -> None:
    """Give a clone of its gradient to each hook on a tensor and to each custom backward: what these write is theirs.

    A hook that returns nothing gives what it has written, as it does under PyTorch.
    """
    put = Patches().put
    register_hook: Callable[..., Any] = torch.Tensor.register_hook

    def registered(tensor: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
        def of_a_clone(gradient: torch.Tensor) -> torch.Tensor | None:
            own = gradient.clone()
            before, result = own._version, hook(own)
            return own if result is None and own._version != before else result

        return register_hook(tensor, of_a_clone)

    put(torch.Tensor, "register_hook", registered)
    owner = private.lookup("autograd.function.BackwardCFunction")
    for name, native in natives().items():
        put(owner, name, _with_clones(native))


def _with_clones(native: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *args: native(node, *map(_clone, args))


def _clone(given: Any) -> Any:
    if isinstance(given, list):
        return list(map(_clone, given))
    return given.clone() if isinstance(given, torch.Tensor) else given


def before_activation(asked: Any) -> Any:
    """Where in the graph a tensor was before an activation overwrote it; the tensor itself where none did."""
    if not isinstance(asked, torch.Tensor) or asked._version == 0 or asked.grad_fn is None:
        return asked
    if not asked.grad_fn.name().startswith(_ACTIVATIONS):
        return asked
    node, output = asked.grad_fn.next_functions[0]
    return asked if node is None else GradientEdge(node, output)
