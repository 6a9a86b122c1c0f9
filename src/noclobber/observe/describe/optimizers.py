"""Which of the program's optimizers step no parameter in common."""

from __future__ import annotations

from itertools import combinations, islice
from types import FrameType

import torch

from noclobber.observe.core.writes.optimizer_steps import is_of_torch
from noclobber.observe.describe.reachable import Held, reachable
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.storages import storage_key

_MOST = 16


def apart(frame: FrameType | None) -> tuple[tuple[str, str], ...]:
    """Return pairs of PyTorch's own optimizers without a parameter in common, by the names that the program's innermost
    frame has for them. All their parameters require a gradient, and are parts of modules: none has a name of its own,
    by which a statement may read it unnoticed."""
    known, alone = dict[str, set[int | None]](), set[int | None]()
    with modes.plain():
        for held in reachable(islice(user_frames(frame), 1)):
            if isinstance(held.value, torch.Tensor) and held.value.requires_grad and _has_own_name(held):
                alone.add(storage_key(held.value))
            elif isinstance(held.value, torch.optim.Optimizer) and is_of_torch(type(held.value)):
                stepped = [one for group in held.value.param_groups for one in group["params"]]
                if held.name not in known and all(one.requires_grad for one in stepped):
                    known[held.name] = {storage_key(one) for one in stepped}
    found = [(name, stepped) for name, stepped in known.items() if stepped.isdisjoint(alone)]
    pairs = combinations(found[:_MOST], 2)
    return tuple((one, other) for (one, mine), (other, theirs) in pairs if mine.isdisjoint(theirs))


def _has_own_name(held: Held) -> bool:
    """Return True for a variable, and for an attribute of `self` or of an object that is no module."""
    if held.kind == "attribute" and isinstance(held.owner, torch.nn.Module):
        return held.name.startswith("self.") and held.name.count(".") == 1
    return held.kind in ("name", "attribute")
