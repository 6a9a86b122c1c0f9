"""What the program's two optimizers step: of which modules, and whether they have a parameter in common."""

from __future__ import annotations

from itertools import islice
from types import FrameType

import torch

from noclobber.model.seen.events import Optimizer
from noclobber.observe.core.writes.optimizer_steps import is_of_torch
from noclobber.observe.describe.reachable import reachable
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.storages import storage_key

_MOST = 64
"""Modules that are looked at."""


def optimizers(frame: FrameType | None) -> tuple[Optimizer, ...]:
    """Return the optimizers that the program's innermost frame can reach, by the names that it has for them, where they
    are two of PyTorch's own."""
    known, modules, alone = dict[str, torch.optim.Optimizer](), dict[str, torch.nn.Module](), set[int | None]()
    with modes.plain():
        for held in reachable(islice(user_frames(frame), 1)):
            if isinstance(held.value, torch.optim.Optimizer):
                known.setdefault(held.name, held.value)
            elif isinstance(held.value, torch.nn.Module) and len(modules) < _MOST:
                modules.setdefault(held.name, held.value)
        two = {id(one): one for one in known.values()}
        if len(two) != 2 or not all(is_of_torch(type(one)) for one in two.values()):
            return ()
        for held in reachable(user_frames(frame)):
            # By a name beside modules, or as an attribute of `self`, a statement may read the parameter.
            is_of_self = held.name.startswith("self.") and held.name.count(".") == 1
            if isinstance(held.value, torch.Tensor) and (is_of_self or not isinstance(held.owner, torch.nn.Module)):
                alone.add(storage_key(held.value))
        stepped = {number: _stepped(one) for number, one in two.items()}
        mine, theirs = ({storage_key(one) for one in parameters} for parameters in stepped.values())
        asked = all(one.requires_grad for parameters in stepped.values() for one in parameters)
        apart = asked and mine.isdisjoint(theirs) and alone.isdisjoint(mine | theirs)
        parts = {name: {*map(id, one.parameters())} for name, one in modules.items()}
    return tuple(
        Optimizer(name, next((of for of, own in parts.items() if own == {*map(id, stepped[id(one)])}), ""), apart)
        for name, one in known.items()
    )


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
