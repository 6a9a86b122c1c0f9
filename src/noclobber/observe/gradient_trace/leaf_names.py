"""Finds what the program's own names lead to: its leaves, its modules, and what it keeps from one step to the next.

Two runs give the same names.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import NamedTuple

import torch

from noclobber.model.source import Owner, owner_of
from noclobber.observe.describe.tensor_names import user_frames

_MOST_VALUES = 400
_MOST_IN_ALL = 100_000
_DEEP = 3
"""How many containers, plain objects and closures a name may lead through."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
"""What PyTorch itself keeps on a module: parameters, buffers and hooks."""
_PLAIN = (int, float, complex, str, bytes, type(None))


class Names(NamedTuple):
    """The tensors and modules that the program has names for.

    `tensors` are by `id`, each with its name: "train: net.fc.weight". `modules` are by name: "train: net". `kept` are
    the tensors by name that are held by a container, an object or a closure, and `numbers` the floats. `bare` are the
    tensors that a variable holds.
    """

    tensors: dict[int, tuple[str, torch.Tensor]]
    modules: dict[str, torch.nn.Module]
    kept: dict[str, torch.Tensor]
    bare: dict[str, torch.Tensor]
    numbers: dict[str, float]

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of a tensor; empty where it has none."""
        return self.tensors.get(id(tensor), ("", None))[0]


def names() -> Names:
    """Return what the user's frames and modules lead to, each under the first name that leads to it.

    Inner frames come first. Nothing is read from a tensor here: reading `is_leaf` of a view can change a program.
    """
    found, walk = Names({}, {}, {}, {}, {}), _Walk()
    for place, scope in _scopes(sys._getframe(1)):
        for label, value in islice(list(scope.items()), _MOST_VALUES):
            for name, known in walk.below(f"{place}: {label}", value):
                if isinstance(known, torch.Tensor):
                    found.tensors.setdefault(id(known), (name, known))
                    (found.bare if known is value else found.kept).setdefault(name, known)
                elif isinstance(known, float):
                    found.numbers.setdefault(name, known)
                else:
                    found.modules.setdefault(name, known)
                    for path, parameter in torch.nn.Module.named_parameters(known):
                        found.tensors.setdefault(id(parameter), (f"{name}.{path}", parameter))
    return found


def kept_by(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that the program's own attributes of a module hold or lead to, each with its name.

    Parameters, buffers and submodules are left out.
    """
    walk = _Walk()
    for label, value in list(vars(module).items()):
        if label not in _OF_EVERY_MODULE:
            for path, known in walk.below(f"{name}.{label}", value):
                if isinstance(known, torch.Tensor):
                    yield path, known


def held_by(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors that a value is or leads to."""
    return (known for _, known in _Walk().below("", value) if isinstance(known, torch.Tensor))


def _scopes(frame: FrameType | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the variables of the user's frames, and those of the user's modules, each with the name of the place."""
    seen: set[int] = set()
    for one in user_frames(frame):
        if one.f_locals is not one.f_globals:
            yield one.f_code.co_name, one.f_locals
        if id(one.f_globals) not in seen:
            seen.add(id(one.f_globals))
            yield str(one.f_globals.get("__name__", "")), one.f_globals
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and id(vars(module)) not in seen and _is_users(name, module):
            seen.add(id(vars(module)))
            yield name, vars(module)


def _is_users(name: str, module: ModuleType) -> bool:
    """Return True if a module is the user's own. At its end a script has no `__file__` any more."""
    path = vars(module).get("__file__")
    return name == "__main__" or (isinstance(path, str) and owner_of(path) is Owner.USER)


class _Walk:
    """Goes through containers, plain objects and closures, and through each of them once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, object]] = {}
        """By `id`, how deep each was gone through. It is held, so that nothing else gets its `id`."""
        self._left = _MOST_IN_ALL

    def below(
        self, name: str, value: object, depth: int = _DEEP
    ) -> Iterator[tuple[str, torch.Tensor | torch.nn.Module | float]]:
        """Yield the tensors and modules that a value is or holds, and the floats that it holds, each with its name.

        Goes `depth` levels deep.
        """
        if isinstance(value, (torch.Tensor, torch.nn.Module)) or (type(value) is float and depth < _DEEP):
            yield name, value
            return
        if not depth or isinstance(value, (*_PLAIN, type, ModuleType)):
            return
        if self._seen.get(id(value), (0, None))[0] >= depth:
            return
        self._seen[id(value)] = depth, value
        for path, one in _parts(value):
            if self._left <= 0:
                return
            self._left -= 1
            yield from self.below(f"{name}{path}", one, depth - 1)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a container, a plain object or a closure holds, each with how its name goes on."""
    if isinstance(value, (list, tuple, deque)):
        yield from ((f"[{number}]", one) for number, one in enumerate(islice(list(value), _MOST_VALUES)))
    elif isinstance(value, Mapping):
        for key, one in islice(list(value.items()), _MOST_VALUES):
            if isinstance(key, (str, int)):
                yield f"[{key!r}]", one
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield "", value.__func__
    elif isinstance(value, FunctionType):
        if owner_of(value.__code__.co_filename) is Owner.USER:
            for label, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
                with suppress(ValueError):  # it has no value yet
                    yield f".{label}", cell.cell_contents
            yield ".__defaults__", value.__defaults__
            yield ".__kwdefaults__", value.__kwdefaults__
    else:
        held = getattr(type(value), "__dictoffset__", 0) and vars(value)
        for key, one in islice(list(held.items()), _MOST_VALUES) if isinstance(held, dict) else ():
            yield f".{key}", one
        for slots in (vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)):
            for key, slot in list(slots.items()):
                if isinstance(slot, MemberDescriptorType):
                    with suppress(AttributeError):
                        yield f".{key}", slot.__get__(value)
