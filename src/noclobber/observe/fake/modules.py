"""Modules in a fake run: what is theirs in memory, and what those that were there before it held."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from noclobber.observe.core.boundary import Way
from noclobber.observe.fake.memory import Memory
from noclobber.observe.torch_api.patches import Patches

Kept = tuple[dict[str, Any], dict[str, Any]]


def patch(patches: Patches, memory: Memory, way: Way, *, keeps: bool) -> Callable[[], None]:
    """Tell the memory which tensors are parameters of modules: `model.to("cuda")` has them on two devices. Return what
    ends that. If it `keeps`, modules then get back the tensors that they had before they were moved."""
    known: weakref.WeakKeyDictionary[torch.nn.Module, Kept] = weakref.WeakKeyDictionary()
    learn = way.entry(lambda tensors: memory.learn("parameters", tensors))
    native: Callable[..., Any] = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
        if keeps and self not in known:
            known[self] = (dict(self._parameters), dict(self._buffers))
        learn(self._parameters.values())
        moved: torch.nn.Module = native(self, *args, **options)
        learn(self._parameters.values())
        return moved

    patches.put(torch.nn.Module, "_apply", _apply)
    handle = register_module_parameter_registration_hook(lambda _, __, one: learn([one]))

    def put_back() -> None:
        handle.remove()
        for module, (parameters, buffers) in known.items():
            module._parameters.update(parameters)
            module._buffers.update(buffers)

    return put_back
