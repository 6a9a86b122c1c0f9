"""Modules that were there before a fake run: `model.to("cuda")` gives them fake parameters for a while."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from noclobber.observe.torch_api.patches import Patches

Kept = tuple[dict[str, Any], dict[str, Any]]


def keep(patches: Patches) -> Callable[[], None]:
    """Remember the tensors of each module before they are moved; return what puts them back."""
    known: weakref.WeakKeyDictionary[torch.nn.Module, Kept] = weakref.WeakKeyDictionary()
    native: Callable[..., Any] = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
        if self not in known:
            known[self] = (dict(self._parameters), dict(self._buffers))
        moved: torch.nn.Module = native(self, *args, **options)
        return moved

    patches.put(torch.nn.Module, "_apply", _apply)

    def put_back() -> None:
        for module, (parameters, buffers) in known.items():
            module._parameters.update(parameters)
            module._buffers.update(buffers)

    return put_back
