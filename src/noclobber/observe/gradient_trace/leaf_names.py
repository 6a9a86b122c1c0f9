"""Finds the program's names for its leaves, from the frames above a backward call. Two runs give the same names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

import torch

from noclobber.model.source import Owner, owner_of

_MOST_FRAMES = 40
_MOST_VALUES = 400
_DEEP = 3
"""How many containers and plain objects a name may lead through."""


class Names(NamedTuple):
    """The tensors and modules that the program has names for.

    `tensors` are by `id`, each with its name: "train: net.fc.weight". `modules` are by name: "train: net".
    """

    tensors: dict[int, tuple[str, torch.Tensor]]
    modules: dict[str, torch.nn.Module]

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of a tensor; empty where it has none."""
        return self.tensors.get(id(tensor), ("", None))[0]


def names() -> Names:
    """Return the tensors and modules that the user's frames lead to, each under the first name that leads to it.

    Inner frames come first. Nothing is read from a tensor here: reading `is_leaf` of a view can change a program.
    """
    found = Names({}, {})
    for frame in _user_frames(sys._getframe(1)):
        scopes = [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
        for scope in scopes:
            for label, value in islice(list(scope.items()), _MOST_VALUES):
                for name, known in _below(f"{frame.f_code.co_name}: {label}", value, _DEEP):
                    if isinstance(known, torch.Tensor):
                        found.tensors.setdefault(id(known), (name, known))
                        continue
                    found.modules.setdefault(name, known)
                    for path, parameter in torch.nn.Module.named_parameters(known):
                        found.tensors.setdefault(id(parameter), (f"{name}.{path}", parameter))
    return found


def _user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < _MOST_FRAMES:
        if owner_of(frame.f_code.co_filename) is Owner.USER:
            count += 1
            yield frame
        frame = frame.f_back


def _below(name: str, value: object, depth: int) -> Iterator[tuple[str, torch.Tensor | torch.nn.Module]]:
    """Yield the tensors and modules that a value is or holds, each with its name. Goes `depth` levels deep."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        yield name, value
    elif depth and isinstance(value, (list, tuple)):
        for number, one in enumerate(value[:_MOST_VALUES]):
            yield from _below(f"{name}[{number}]", one, depth - 1)
    elif depth and isinstance(value, Mapping) and not isinstance(value, ModuleType):
        for key, one in islice(list(value.items()), _MOST_VALUES):
            if isinstance(key, (str, int)):
                yield from _below(f"{name}[{key!r}]", one, depth - 1)
    elif depth and not isinstance(value, (type, ModuleType, FunctionType, MethodType)):
        held = getattr(type(value), "__dictoffset__", 0) and vars(value)
        for key, one in islice(list(held.items()), _MOST_VALUES) if isinstance(held, dict) else ():
            yield from _below(f"{name}.{key}", one, depth - 1)
