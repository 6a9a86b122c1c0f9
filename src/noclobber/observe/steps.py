"""Optimizer steps: one record a step, through PyTorch's global optimizer hooks, in place of one a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


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


def listen(
    before: Callable[[torch.optim.Optimizer, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[torch.optim.Optimizer], None],
) -> Callable[[], None]:
    """Call `before` and `after` around every step of every optimizer; returns what undoes it.

    `after` is not called where the step raises (Optimizer.profile_hook_step, torch 2.13).
    """

    def on_pre(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before(optimizer, args, kwargs)

    def on_post(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after(optimizer)

    handles = [register_optimizer_step_pre_hook(on_pre), register_optimizer_step_post_hook(on_post)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo
