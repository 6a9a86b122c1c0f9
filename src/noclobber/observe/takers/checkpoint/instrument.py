"""Watches torch.utils.checkpoint: a region that backward runs again must compute what it computed in forward."""

from __future__ import annotations

import torch.utils.checkpoint

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.takers import user_save_hooks
from noclobber.observe.takers.checkpoint import non_reentrant, reentrant, selective
from noclobber.observe.torch_api import self_tests


def arm(context: Context, way: Way) -> None:
    """Watch every region until the recorder disarms."""
    self_tests.of_checkpoints()
    non_reentrant.arm(context, way)
    module = torch.utils.checkpoint
    if (asks := getattr(module, "_current_user_saved_tensors_hooks", None)) is not None:
        # From torch 2.15 on, a selective checkpoint warns of the program's hooks or passes what it keeps through them.
        way.patches.put(
            module, "_current_user_saved_tensors_hooks", lambda: way.guarded(lambda: user_save_hooks.theirs(asks))
        )
    non_reentrant.give_arguments_again(context, way)
    reentrant.arm(context, way)
    selective.arm(context, way)
