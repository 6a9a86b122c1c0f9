"""How a private name of PyTorch is looked up, with a plain message where a release lacks it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from noclobber.model.error import UnsupportedTorch
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


def not_yet(*_: object) -> NoReturn:
    """Stand in a module for a private name until `bind` has looked it up."""
    raise RuntimeError("nothing is armed: call `required.look_up` first")


def bind(module: dict[str, Any], names: Mapping[str, str]) -> None:
    """Put into a module's names what PyTorch holds under private ones. Raises UnsupportedTorch, as `lookup` does."""
    module.update({name: lookup(path) for name, path in names.items()})
