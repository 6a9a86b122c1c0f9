"""Makes a program's own run give what a patch is compared with: right gradients, or the loss alone.

Each function removes one cause of wrong gradients: saves get copies that nobody overwrites, Python code gets gradients
of its own, tensors count as they were before an activation, weights are cast anew, regions run once, what a Function
returns is its own, or reverse mode is off.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from noclobber.observe.core.calls import natives
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in


def clone_saves() -> None:
    """Make autograd keep a clone of each tensor that it saves: the simplest way to right gradients."""
    hook_stack.push_hooks(torch.clone, lambda tensor: tensor)


def compile_nothing() -> None:
    """Make `torch.compile` leave functions as they are, so that forward mode and the run that it is compared with see
    their operators."""
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # read when the compiler is imported
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.config.disable = True


def in_float64() -> None:
    """Make numbers in float64 where the program does not say which type they have; `.float()` says "a number"."""
    torch.set_default_dtype(torch.float64)
    Patches().put(torch.Tensor, "float", torch.Tensor.double)


def permit_inference_writes() -> None:
    """Make `torch.inference_mode` mean `torch.no_grad`: its tensors refuse writes where no gradient is recorded too."""
    entered: dict[int, list[torch.set_grad_enabled]] = {}

    def enter(block: torch.inference_mode) -> None:
        entered.setdefault(id(block), []).append(torch.set_grad_enabled(not block.mode))

    def leave(block: torch.inference_mode, *error: object) -> None:
        entered[id(block)].pop().__exit__(None, None, None)

    patches = Patches()
    patches.put(torch.inference_mode, "__enter__", enter)
    patches.put(torch.inference_mode, "__exit__", leave)


def map_by_loops() -> None:
    """Make `torch.vmap` call the function for each element: a write to a tensor that is not mapped then succeeds."""
    native: Callable[..., Callable[..., object]] = torch.vmap

    def vmap(func: Callable[..., object], in_dims: object = 0, out_dims: object = 0, *rest: Any, **how: Any) -> object:
        mapping = native(func, in_dims, out_dims, *rest, **how)

        def mapped(*args: object, **kwargs: object) -> object:
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
            pairs = list(zip(args, dims, strict=True))
            plain = all(dim is None or (type(dim) is int and isinstance(one, torch.Tensor)) for one, dim in pairs)
            if rest or how or kwargs or not plain or type(out_dims) is not int:
                return mapping(*args, **kwargs)
            made = [func(*one) for one in zip(*(_unbound(one, dim, pairs) for one, dim in pairs), strict=True)]
            return pytree.tree_map(lambda *parts: torch.stack(parts, out_dims), *made)

        return mapped

    for owner in (torch, torch.func):
        Patches().put(owner, "vmap", vmap)


def _unbound(one: Any, dim: int | None, pairs: list[tuple[Any, int | None]]) -> Sequence[object]:
    """Return what a mapped function is given for an argument, one for each call."""
    calls = next(other.shape[place] for other, place in pairs if place is not None)
    return [one] * calls if dim is None else [one.select(dim, number) for number in range(calls)]


def hand_out_clones() -> None:
    """Give each hook on a tensor or a module, each custom backward, and who calls `torch.autograd.grad`, clones of its
    gradients, so that no other sees its writes.

    If a hook returns nothing but has written to what it may return, the written clone is the result, as with PyTorch
    alone.
    """
    put, module, grad = Patches().put, torch.nn.Module, torch.autograd.grad
    put(torch.autograd, "grad", lambda *args, **kwargs: _cloned(grad(*args, **kwargs)))
    put(torch.Tensor, "register_hook", _registering(torch.Tensor.register_hook, 0))
    for name in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        put(module, name, _registering(getattr(module, name), 1))
    for name, native in natives().items():
        put(BackwardCFunction, name, _with_clones(native))


def _registering(register: Callable[..., object], at: int) -> Callable[..., object]:
    """Return the method that registers a hook which gets clones. `at`: the position of what it may replace."""

    def registered(of: object, hook: Callable[..., object], *args: object, **kwargs: object) -> object:
        def of_clones(*given: object) -> object:
            own = _cloned(given)
            result = hook(*own)
            is_written = any(one._version for one in tensors_in(own[at]))
            return own[at] if result is None and is_written else result

        return register(of, of_clones, *args, **kwargs)

    return registered


def _with_clones(native: Callable[..., object]) -> Callable[..., object]:
    return lambda node, *args: native(node, *_cloned(args))


def return_clones() -> None:
    """Make each custom Function of the program return clones of views, which PyTorch lets the program write."""
    native = vars(torch.autograd.Function)["apply"]  # of C++ from torch 2.15 on, without the function itself

    def apply(function: type, /, *args: object, **kwargs: object) -> object:
        given = native.__get__(None, function)(*args, **kwargs)
        return given if function.__module__.startswith("torch.") else _without_views(given)

    Patches().put(torch.autograd.Function, "apply", classmethod(apply))


_cloned = partial(pytree.tree_map_only, torch.Tensor, lambda one: one.clone())
_without_views = partial(pytree.tree_map_only, torch.Tensor, lambda one: one.clone() if one._is_view() else one)


def call_regions_once() -> None:
    """Make `checkpoint` call its region as any function is called, so that nothing of it runs again."""
    options = ("preserve_rng_state", "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop")

    def checkpoint(function: Callable[..., object], *args: object, **kwargs: object) -> object:
        return function(*args, **{name: given for name, given in kwargs.items() if name not in options})

    Patches().put(importlib.import_module("torch.utils.checkpoint"), "checkpoint", checkpoint)


def keep_no_casts() -> None:
    """Make autocast cast a weight each time that it is used, so that no cast is older than the weight."""
    native = torch.set_autocast_cache_enabled  # each thread has a flag of its own
    Patches().put(torch, "set_autocast_cache_enabled", lambda enabled: native(False))


def before_write(asked: torch.Tensor, node: int) -> object:
    """Return the place in the graph that a tensor had before writes in place, as a GradientEdge.

    The first of the writes made the node with the number `node`. Returns the tensor itself where the place is unknown.
    """
    made_by, output = asked.grad_fn, asked.output_nr
    while made_by is not None and node <= made_by._sequence_nr() != graph.UNNUMBERED:
        if not made_by.next_functions or made_by.name().startswith(("CopySlices", "AsStrided")):
            return asked
        made_by, output = made_by.next_functions[0]
    return asked if made_by is None else GradientEdge(made_by, output)


class Fresh:
    """Cuts the edges into a leaf that are older than the leaf's last step, or than the last backward call.

    A state that is carried over a step is then a constant, as `detach()` would make it.
    """

    def __init__(self, since: Literal["step", "backward"]) -> None:
        self._since = since
        self._bounds: dict[int, int] = {}
        """By the `id` of a leaf, the number of the next node at its last step: nodes below that number are old. Python
        reuses ids, but the nodes of a new leaf are all newer than the steps of the dead one."""
        self._bound = 0

    def arm(self) -> None:
        """Listen to the steps of optimizers."""
        if self._since == "step":
            hook_stack.hook(register_optimizer_step_post_hook, self._stepped)

    def backward_ended(self) -> None:
        """Note that a backward call has ended: all nodes until now are old."""
        if self._since == "backward":
            self._bound = engine_state.next_node()

    def cut(self, roots: list[Node]) -> list[RemovableHandle]:
        """Register hooks that leave out the gradients along old edges. Returns them, to be removed after the call."""
        hooks = []
        for node in graph.walk(roots):
            number = node._sequence_nr()
            if number == graph.UNNUMBERED:
                continue
            old = [index for index, (leaf, _) in enumerate(node.next_functions) if self._is_old(leaf, number)]
            if old:
                hooks.append(hook_stack.hook(node.register_hook, _without(old)))
        return hooks

    def _is_old(self, node: object, number: int) -> bool:
        """Return True if a node accumulates the gradient of a leaf and the edge from node `number` to it is old."""
        leaf = getattr(node, "variable", None)
        return leaf is not None and number < max(self._bound, self._bounds.get(id(leaf), 0))

    def _stepped(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        now = engine_state.next_node()
        self._bounds.update((id(one), now) for group in optimizer.param_groups for one in group["params"])


def _without(old: list[int]) -> Callable[[tuple[object, ...], object], tuple[object, ...]]:
    def made(gradients: tuple[object, ...], _: object) -> tuple[object, ...]:
        return tuple(None if index in old else gradient for index, gradient in enumerate(gradients))

    return made
