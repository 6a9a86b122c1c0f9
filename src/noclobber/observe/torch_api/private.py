"""How a private name of PyTorch is looked up, with a plain message where a release lacks it."""

from __future__ import annotations

import operator
from typing import Any

import torch

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.torch_api import releases


def lookup(name: str) -> Any:
    """Return what PyTorch holds under a private name such as "_C._autograd.SavedTensor".

    Raises UnsupportedTorch where PyTorch lacks the name. The modules of torch_api/ call this when they are imported,
    for what everything needs. Call it elsewhere when a way of seeing is armed: then a missing name costs this way, and
    not all of them.
    """
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        supported = f"torch {releases.OLDEST} to {releases.NEWEST} are supported"
        raise UnsupportedTorch(f"torch {torch.__version__} has no `torch.{name}`; {supported}") from None
