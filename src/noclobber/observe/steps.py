"""Optimizer steps: one record a step, through PyTorch's global optimizer hooks, in place of one a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from noclobber.model.clobber import LiveSaves
from noclobber.model.events import Step
from noclobber.observe import internals
from noclobber.observe.memory import Memory
from noclobber.observe.records import Backward, Record, record
from noclobber.observe.saves import Handle
from noclobber.observe.sites import Place, caller, site_of
from noclobber.observe.writes import Written


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that a step may write: every parameter that has a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def writes_only_parameters(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the step is PyTorch's own and runs no code of the user: then the write log may rest while it runs.

    A closure runs forward and backward inside the step; `differentiable=True` records the step itself.
    """
    return (
        type(optimizer).__module__.startswith("torch.optim.")
        and len(args) < 2
        and not kwargs.get("closure")
        and not optimizer.defaults.get("differentiable")
    )


class Steps:
    """Listens to the steps of every optimizer; tells `met` of the live saves that a step is about to overwrite."""

    def __init__(
        self,
        memory: Memory,
        backwards: list[Backward],
        met: Callable[[list[Handle], torch.Tensor, Record], None],
    ) -> None:
        self._memory = memory
        self._backwards = backwards
        self._met = met
        self._live: LiveSaves[Handle] | None = None
        self._by_key = True
        self._hooks: list[Any] = []

    def listen(self, live: LiveSaves[Handle] | None, by_key: bool) -> None:
        """Begin; without `live` every parameter's write is remembered, else those that meet a live save."""
        self._live, self._by_key = live, by_key
        # The second is not called where the step raises (Optimizer.profile_hook_step, torch 2.13).
        self._hooks = [
            internals.hook(register_optimizer_step_pre_hook, self._before),
            internals.hook(register_optimizer_step_post_hook, self._after),
        ]

    def stop(self) -> None:
        """End."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One record for all parameters; then PyTorch's own optimizers run unlogged."""
        thread = self._memory.thread
        if not thread.entered:
            return
        self.unmute()
        place = caller(1)
        step = Step(type(optimizer).__name__, site_of(place))
        if self._by_key and writes_only_parameters(optimizer, args, kwargs):
            written = Written(f"{step.optimizer}.step", (), bool(optimizer.defaults.get("fused")))
            if self._live is None or self._live.any() or self._memory.rereads.any():
                self._about_to_write(optimizer, written, place, step)
            thread.muted = True
            internals.set_key(False)
        thread.step = step

    def _about_to_write(
        self, optimizer: torch.optim.Optimizer, written: Written, place: Place | None, step: Step
    ) -> None:
        for parameter in parameters(optimizer):
            key = internals.storage_key(parameter)
            if key is None:
                continue
            handles = self._live.at(key) if self._live is not None else None
            if handles or self._live is None or self._memory.is_reread(key):
                noted = record(written, parameter, key, place, step, len(self._backwards))
                self._memory.recent.append(noted)
                if handles:
                    self._met(handles, parameter, noted)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._memory.thread.step = None
        self.unmute()

    def unmute(self) -> None:
        """Listen again, also after a step that raised and so never reached `_after`."""
        thread = self._memory.thread
        if thread.muted:
            thread.muted = False
            thread.step = None
            internals.set_key(True)
