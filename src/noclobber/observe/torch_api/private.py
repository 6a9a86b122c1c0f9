"""How a private name of PyTorch is looked up, with a plain message where a release lacks it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.torch_api import releases


def lookup(name: str) -> Any:
    """Return what PyTorch holds under a private name such as "_C._autograd.SavedTensor".

    Raises UnsupportedTorch where PyTorch lacks the name. Call this when a way of seeing is armed, never when a module
    is imported: then a missing name costs one way of seeing, and not all of them.
    """
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        supported = f"torch {releases.OLDEST} to {releases.NEWEST} are supported"
        raise UnsupportedTorch(f"torch {torch.__version__} has no `torch.{name}`; {supported}") from None


class Name:
    """Stands in a module for what PyTorch holds under a private name, until `bind` has looked it up."""

    def __init__(self, path: str, meanwhile: object) -> None:
        self.path, self._meanwhile = path, meanwhile

    def __call__(self, *_: object) -> object:
        if self._meanwhile is None:
            raise RuntimeError("nothing is armed: call `required.look_up` first")
        return self._meanwhile


def name(path: str, meanwhile: object = None) -> Any:
    """Return a `Name` for a module. Until it is bound, a call of it returns `meanwhile`, and raises without that."""
    return Name(path, meanwhile)


def names_in(module: ModuleType) -> dict[str, str]:
    """Return what the names in a module that nobody has bound yet are called in PyTorch."""
    return {key: value.path for key, value in vars(module).items() if isinstance(value, Name)}


def bind(module: ModuleType, names: Mapping[str, str]) -> None:
    """Put into a module's names what PyTorch holds under private ones. Raises UnsupportedTorch, as `lookup` does."""
    vars(module).update({key: lookup(path) for key, path in names.items()})
