"""Stops the program after some steps of its optimizers; after some backward calls where it has none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from noclobber.model.fake import Enough
from noclobber.observe.core.boundary import Way
from noclobber.observe.fake.memory import Memory
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.patches import Patches

MOST_OFTEN = 10
"""One optimizer may step so many times as often as asked for, while another one has not stepped yet."""


class Steps:
    """Counts the steps of each optimizer that the program has made. `enough` is how many it is to make."""

    def __init__(self, enough: int, memory: Memory, way: Way) -> None:
        self._enough, self._memory, self._way = enough, memory, way
        self._taken: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self.steps = self._backwards = 0
        self.stopped = False

    def patch(self, patches: Patches) -> Callable[[], None]:
        """Count from now on; the function that is returned ends it."""
        native = torch.optim.Optimizer.__init__

        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> None:
            native(optimizer, *args, **options)
            self._taken[optimizer] = 0
            self._way.guarded(self._learn, optimizer)

        patches.put(torch.optim.Optimizer, "__init__", __init__)
        return hook_stack.hook(register_optimizer_step_post_hook, self._stepped).remove

    def _learn(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        states = [value for state in optimizer.state.values() for value in state.values()]
        self._memory.learn("parameters", parameters)
        self._memory.learn("gradients", [one.grad for one in parameters])
        self._memory.learn("optimizer state", states)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._way.guarded(self._learn, optimizer)
        self._taken[optimizer] = taken = self._taken.get(optimizer, 0) + 1
        self.steps += 1
        if not self._enough:
            return
        others = min(self._taken.values())
        if others >= self._enough or taken >= self._enough * MOST_OFTEN:
            self.stop()

    def stop(self) -> None:
        self.stopped = True
        raise Enough

    def in_words(self) -> str:
        """Return what was counted: "3 optimizer steps"."""
        count, what = (self.steps, "optimizer step") if self.steps else (self._backwards, "backward call")
        return f"{count:,} {what}{'s' * (count != 1)}"

    def are_enough(self, backwards: int) -> bool:
        """Return True after so many backward calls in a program without an optimizer."""
        self._backwards = backwards
        return bool(self._enough) and not self._taken and backwards >= self._enough
