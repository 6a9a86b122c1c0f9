"""Tensors whose dimensions have names. torch 2.10 to 2.12 cannot pass them to a kernel that is written in Python.

It raises "Named tensors are currently unsupported in TorchScript" before it calls the kernel. So operators must bypass
the kernels while such tensors exist (tests/observe/transparent/test_named.py). Later releases have no names.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.writes import write_kernels
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import modes, registry, spare_key

UNSEEN = "writes, as soon as dimensions of tensors have names"
_may_be_there = True
"""Whether tensors with names may have been made before the recorder was armed."""


def arm(context: Context, way: Way) -> None:
    """Make all operators bypass the kernels once a tensor has names, until the recorder disarms.

    A call that makes such a tensor directly (`torch.zeros(3, names=...)`) is not noticed, and it fails.
    """
    global _may_be_there
    if not hasattr(torch.Tensor, "refine_names"):
        return
    passing: list[Any] = []

    def pass_by() -> None:
        global _may_be_there
        if not passing:
            _may_be_there = True
            _pass_by(passing)
            context.bus.not_seen(UNSEEN)

    def end() -> None:
        for library in passing:
            library._destroy()

    way.at_end(end)
    for name in ("refine_names", "rename", "rename_"):
        way.before(torch.Tensor, name, lambda *_, **__: pass_by())
    names = private.lookup("_C.TensorBase.names")

    def set_names(tensor: torch.Tensor, value: object) -> None:
        way.guarded(pass_by)
        names.__set__(tensor, value)

    way.patches.put(torch.Tensor, "names", property(names.__get__, set_names, doc=names.__doc__))
    if _may_be_there:
        _may_be_there = _are_there()
        if _may_be_there:
            pass_by()


def _pass_by(passing: list[Any]) -> None:
    """Register a fallthrough over each kernel. The kernels stay registered, as one of them may be running."""
    libraries: dict[str, Any] = {}
    with warnings.catch_warnings(action="ignore"):
        for namespace, name in write_kernels.kernels:
            if namespace not in libraries:
                libraries[namespace] = registry.library(namespace)
                passing.append(libraries[namespace])
            nothing = torch.library.fallthrough_kernel
            libraries[namespace].impl(name, nothing, spare_key.KEY_NAME, allow_override=True)


def _are_there() -> bool:
    """Return True if a tensor with names is alive; one that only waits for the garbage collector is not."""
    if not any(map(_has_names, gc.get_objects())):
        return False
    gc.collect()
    return any(map(_has_names, gc.get_objects()))


def _has_names(thing: Any) -> bool:
    if not issubclass(type(thing), torch.Tensor):
        return False
    with modes.plain():
        return bool(thing.has_names())
