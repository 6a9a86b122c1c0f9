"""Gradients with respect to the current weights only: what flows through uses of older weights is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch.autograd.graph import Node
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack


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
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._bounds[id(parameter)] = now


def _without(old: list[int]) -> Callable[[tuple[object, ...], object], tuple[object, ...]]:
    def made(gradients: tuple[object, ...], _: object) -> tuple[object, ...]:
        return tuple(None if index in old else gradient for index, gradient in enumerate(gradients))

    return made
