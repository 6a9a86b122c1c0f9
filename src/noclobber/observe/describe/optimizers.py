"""What the program's two optimizers step: of which modules, and whether they have a parameter in common. Whether any
optimizer steps what a graph leads to."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import islice
from types import FrameType

import torch

from noclobber.model.seen.events import Optimizer
from noclobber.observe.core.seen.history import Memory
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


def have_changed(leaves: Sequence[torch.Tensor], since: int, memory: Memory) -> bool:
    """Return True if leaves have changed since a node of this number was made, or will: something has written one, or
    an optimizer of the process has it. Also if there is none, as the program then steps by hand."""
    keys = set(map(storage_key, leaves))
    if any(record.key in keys and record.node > since for record in memory.recent):
        return True
    optimizers = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    return not optimizers or any(storage_key(one) in keys for each in optimizers for one in _stepped(each))


def names_apart(leaves: Sequence[torch.Tensor], frame: FrameType | None) -> tuple[str, ...]:
    """Return the names that the program has for modules which have none of these leaves, and for tensors that are none
    of them."""
    keys, names = set(map(storage_key, leaves)), dict[str, bool]()
    for held in reachable(user_frames(frame)):
        module = held.value if isinstance(held.value, torch.nn.Module) else None
        parameters = () if module is None else module.parameters()  # a module may be false: it may have a length
        inside = [held.value] if isinstance(held.value, torch.Tensor) else parameters
        if module is not None or isinstance(held.value, torch.Tensor):
            has_one = any(storage_key(one) in keys for one in inside)
            names[held.name] = names.get(held.name, False) or has_one
    return tuple(name for name, has_one in names.items() if not has_one)


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
