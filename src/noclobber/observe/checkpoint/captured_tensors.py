"""What a function reads from outside: tensors in its arguments, closure, defaults, globals, bound self and modules."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_DEEPEST = 5
"""Levels followed: a closure's cell, the trainer in it, its dict of modules, a module, what is in it."""
_MOST = 2000
"""Values looked at in one container."""
_LEAVES = (str, bytes, int, float, complex, type(None), type, ModuleType, BuiltinFunctionType, torch.dtype)


def tensors_read(*values: Any) -> list[torch.Tensor]:
    """The tensors that can be reached from functions, modules, containers and plain objects, each once."""
    found: dict[int, torch.Tensor] = {}
    seen: dict[int, Any] = {}
    waiting = [(value, _DEEPEST) for value in values]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif not isinstance(value, _LEAVES) and id(value) not in seen and depth:
            seen[id(value)] = value
            waiting.extend((inner, depth - 1) for inner in _inside(value))
    return list(found.values())


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.nn.Module):
        return _of_module(value)
    if isinstance(value, dict):
        return list(value.values())[:_MOST]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)[:_MOST]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if type(value).__module__.partition(".")[0] == "torch":
        return ()
    return list(getattr(value, "__dict__", {}).values())[:_MOST]


def _of_module(module: torch.nn.Module) -> Iterator[Any]:
    """Parameters, buffers, and whatever else a module and those in it hold by name."""
    for one in module.modules():
        yield from one._parameters.values()
        counts = getattr(one, "momentum", None) is None
        yield from (value for name, value in one._buffers.items() if counts or name != _COUNT)
        for name, value in vars(one).items():
            if name not in _OF_EVERY_MODULE and not isinstance(value, _LEAVES):
                yield value


_COUNT = "num_batches_tracked"
"""Of batch norm, which reads it only where its momentum is None."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the name is not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    scope = function.__globals__
    for name in _names(function.__code__):
        if name in scope:
            yield scope[name]


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> frozenset[str]:
    """The names that code, and the functions defined in it, may look up among the globals."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return frozenset(code.co_names).union(*(_names(one) for one in inner))
