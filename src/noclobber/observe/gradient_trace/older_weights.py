"""Gradients with regard to the weights as they are: what flowed through uses of older weights is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from noclobber.observe.torch_api import graph, private


class Fresh:
    """Cuts, in each backward call, the edges into a leaf that are older than the leaf's last step, or than the last
    backward call. A state carried over a step is then a constant, which is what `detach()` makes of it."""

    def __init__(self, since: Literal["step", "backward"]) -> None:
        self._since = since
        self._bounds: dict[int, int] = {}
        """By the `id` of a leaf. Where it is used again, nothing is older than the step that the new leaf goes into."""
        self._bound = 0

    def arm(self) -> None:
        """Listen to the steps."""
        if self._since == "step":
            private.hook(register_optimizer_step_post_hook, self._stepped)

    def backward_ended(self) -> None:
        """A backward call has ended."""
        if self._since == "backward":
            self._bound = private.next_node()

    def cut(self, roots: list[Any]) -> list[Any]:
        """Hooks that leave out what is old, for the time of one backward call."""
        hooks = []
        for node in graph.walk(roots):
            number = node._sequence_nr()
            if number == graph.UNNUMBERED:
                continue
            old = [index for index, (leaf, _) in enumerate(node.next_functions) if self._is_old(leaf, number)]
            if old:
                hooks.append(private.hook(node.register_hook, _without(old)))
        return hooks

    def _is_old(self, node: Any, number: int) -> bool:
        leaf = getattr(node, "variable", None)
        return leaf is not None and number < max(self._bound, self._bounds.get(id(leaf), 0))

    def _stepped(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        now = private.next_node()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._bounds[id(parameter)] = now


def _without(old: list[int]) -> Callable[[Any, Any], Any]:
    def made(gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
        return tuple(None if index in old else one for index, one in enumerate(gradients))

    return made
