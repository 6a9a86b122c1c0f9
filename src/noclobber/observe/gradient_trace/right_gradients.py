"""Makes a program's own run give what a patch is compared with: right gradients, or the loss alone.

Each function removes one cause of wrong gradients: saves get copies that nobody overwrites, Python code gets gradients
of its own, tensors count as they were before an activation, or reverse mode is off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch.autograd.graph import GradientEdge

from noclobber.observe.core.custom_backwards import natives
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches

_ACTIVATIONS = (
    "Relu", "LeakyRelu", "Elu", "Celu", "Selu", "Silu", "Mish", "Hardtanh", "Hardswish", "Hardsigmoid", "Threshold",
    "Rrelu", "NativeDropout", "Sigmoid", "Tanh",
)  # fmt: skip
"""How the names of nodes begin: those of the operators that NC209 reports, and of similar ones."""


def clone_saves() -> None:
    """Make autograd keep a clone of each tensor that it saves: the simplest way to right gradients."""
    private.require()
    private.push_hooks(torch.clone, _identity)


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def compile_nothing() -> None:
    """Make `torch.compile` leave functions as they are, so that forward mode and the run that it is compared with see
    their operators."""
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # read when the compiler is imported
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.config.disable = True


def gradients_off() -> None:
    """Record no graph from now on. Writes that autograd forbids then succeed, and losses can be compared."""
    torch.set_grad_enabled(False)


def hand_out_clones() -> None:
    """Give each hook on a tensor and each custom backward a clone of its gradient, so that no one else sees its writes.

    If a hook returns nothing but has written to its gradient, the written clone is the result, as with PyTorch alone.
    """
    put = Patches().put
    register_hook: Callable[..., object] = torch.Tensor.register_hook

    def registered(tensor: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> object:
        def of_a_clone(gradient: torch.Tensor) -> torch.Tensor | None:
            own = gradient.clone()
            before, result = own._version, hook(own)
            return own if result is None and own._version != before else result

        return register_hook(tensor, of_a_clone)

    put(torch.Tensor, "register_hook", registered)
    owner = private.lookup("autograd.function.BackwardCFunction")
    for name, native in natives().items():
        put(owner, name, _with_clones(native))


def _with_clones(native: Callable[..., object]) -> Callable[..., object]:
    return lambda node, *args: native(node, *map(_clone, args))


def _clone(argument: object) -> object:
    if isinstance(argument, list):
        return list(map(_clone, argument))
    return argument.clone() if isinstance(argument, torch.Tensor) else argument


def before_activation(asked: object) -> object:
    """Return the place in the graph that a tensor had before an activation overwrote it, as a GradientEdge.

    Returns the argument itself where no activation did, or where it is no tensor.
    """
    if not isinstance(asked, torch.Tensor) or asked._version == 0 or asked.grad_fn is None:
        return asked
    if not asked.grad_fn.name().startswith(_ACTIVATIONS):
        return asked
    node, output = asked.grad_fn.next_functions[0]
    return asked if node is None else GradientEdge(node, output)
