"""What the program's optimizers step: of which modules, and whether they have a parameter in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain, islice
from types import FrameType

import torch

from noclobber.model.seen.events import Optimizer
from noclobber.observe.core.writes.optimizer_steps import is_of_torch
from noclobber.observe.describe.reachable import reachable, variables
from noclobber.observe.describe.tensor_names import user_frames
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.storages import PLAIN, storage_key

_MOST_FRAMES = 4
"""Frames in which optimizers are looked for."""
_MOST = 64
"""Modules that are looked at."""
_MOST_NODES = 5000
"""Nodes of the graph of one variable that are looked at."""


def optimizers(frame: FrameType | None) -> tuple[Optimizer, ...]:
    """Return the optimizers that the innermost frame of the program reaches which reaches two, by the names that it has
    for them, where they are PyTorch's own."""
    known, modules = dict[str, torch.optim.Optimizer](), dict[str, torch.nn.Module]()
    with modes.plain():
        for each in islice(user_frames(frame), _MOST_FRAMES):
            known, modules = {}, {}
            for held in reachable([each]):
                if isinstance(held.value, torch.optim.Optimizer):
                    known.setdefault(held.name, held.value)
                elif isinstance(held.value, torch.nn.Module) and len(modules) < _MOST:
                    modules.setdefault(held.name, held.value)
            if len({*map(id, known.values())}) > 1:
                break
        stepped = {id(one): {*map(id, _stepped(one))} for one in known.values()}
        if len(stepped) < 2 or not all(is_of_torch(type(one)) for one in known.values()):
            return ()
        own = {
            number: {*map(storage_key, _stepped(one))}
            for number, one in {id(one): one for one in known.values()}.items()
        }
        common = {key for key, count in Counter(chain.from_iterable(own.values())).items() if count > 1}
        alone: set[int | None] = set()
        for held in reachable(user_frames(frame)):
            # By a name beside modules, or as an attribute of `self`, a statement may read the parameter.
            is_of_self = held.name.startswith("self.") and held.name.count(".") == 1
            if isinstance(held.value, torch.Tensor) and (is_of_self or not isinstance(held.owner, torch.nn.Module)):
                alone.add(storage_key(held.value))
        asked = all(parameter.requires_grad for one in known.values() for parameter in _stepped(one))
        apart = asked and not common and alone.isdisjoint(chain.from_iterable(own.values()))
        parts = {name: {*map(id, one.parameters())} for name, one in modules.items()}
    return tuple(
        Optimizer(
            name,
            next((of for of, part in parts.items() if part == stepped[id(one)]), ""),
            apart,
            not common.isdisjoint(own[id(one)]),
            tuple(of for of, part in parts.items() if part & stepped[id(one)]),
        )
        for name, one in known.items()
    )


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def leading_only_to(keys: Collection[int | None], frames: Iterable[FrameType]) -> tuple[str, ...]:
    """Return the variables of frames that hold a tensor whose graph leads to nothing but leaves on these storages."""
    found: dict[str, bool] = {}
    for frame in frames:
        for name, value in variables(frame).items():
            node = graph.made_or_base_of(value) if type(value) in PLAIN and value.requires_grad else None
            if node is not None:
                nodes = list(islice(graph.walk([node]), _MOST_NODES + 1))
                leaves = [leaf for one in nodes if (leaf := getattr(one, "variable", None)) is not None]
                is_spent = len(nodes) <= _MOST_NODES and all(storage_key(leaf) in keys for leaf in leaves)
                found[name] = found.get(name, True) and is_spent
    return tuple(name for name, is_spent in found.items() if is_spent)
