"""Which of the program's optimizers step no parameter in common."""

from __future__ import annotations

from itertools import combinations, islice
from types import FrameType

import torch

from noclobber.observe.core.writes.optimizer_steps import is_of_torch
from noclobber.observe.describe.reachable import reachable
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.storages import storage_key

_MOST = 16


def apart(frame: FrameType | None) -> tuple[tuple[str, str], ...]:
    """Return pairs of PyTorch's own optimizers without a parameter in common, by the names that the program's innermost
    frame has for them."""
    own = islice(user_frames(frame), 1)
    with modes.plain():
        known = {
            held.name: {storage_key(one) for group in held.value.param_groups for one in group["params"]}
            for held in reachable(own)
            if isinstance(held.value, torch.optim.Optimizer) and is_of_torch(type(held.value))
        }
    pairs = combinations(list(known.items())[:_MOST], 2)
    return tuple((one, other) for (one, mine), (other, theirs) in pairs if mine.isdisjoint(theirs))
