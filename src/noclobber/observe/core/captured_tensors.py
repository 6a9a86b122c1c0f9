"""Finds the tensors that a function can read: in arguments, closure, defaults, globals, bound self and modules."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType

import torch

_DEEPEST = 5
"""How many levels are followed: a closure's cell, the trainer in it, its dict of modules, a module, its contents."""
_MOST = 2000
"""How many values of one container are visited."""
_LEAVES = (str, bytes, int, float, complex, type(None), type, ModuleType, BuiltinFunctionType, torch.dtype)


def tensors_read(*values: object, states: bool = True) -> list[torch.Tensor]:
    """Return the tensors that functions, modules, containers and plain objects lead to, each once.

    Unless `states`, the parameters, buffers and children of modules are left out: of a module only attributes count.
    """
    found: dict[int, torch.Tensor] = {}
    seen: dict[int, object] = {}
    waiting = [(value, _DEEPEST) for value in values]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif not isinstance(value, _LEAVES) and id(value) not in seen and depth:
            seen[id(value)] = value
            waiting.extend((inner, depth - 1) for inner in _inside(value, states))
    return list(found.values())


def _inside(value: object, states: bool) -> Iterable[object]:
    """Return the values that a value leads to directly."""
    if isinstance(value, torch.nn.Module):
        return _of_module(value) if states else _attributes(value)
    if isinstance(value, dict):
        return list(value.values())[:_MOST]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)[:_MOST]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if type(value).__module__.partition(".")[0] == "torch":
        return ()
    return [*_in_slots(value), *list(getattr(value, "__dict__", {}).values())[:_MOST]]


def _in_slots(value: object) -> Iterator[object]:
    for slot in _slots(type(value)):
        try:
            yield slot.__get__(value)
        except AttributeError:  # nothing was put there yet
            continue


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[MemberDescriptorType, ...]:
    """Return what reads the slots of the instances of a class."""
    return tuple(one for each in kind.__mro__ for one in vars(each).values() if isinstance(one, MemberDescriptorType))


def _of_module(module: torch.nn.Module) -> Iterator[object]:
    """Yield the parameters, buffers and other attributes of a module and of the modules in it."""
    for each in module.modules():
        yield from each._parameters.values()
        counts = getattr(each, "momentum", None) is None
        yield from (value for name, value in each._buffers.items() if counts or name != _COUNT)
        yield from _attributes(each)


def _attributes(module: torch.nn.Module) -> Iterator[object]:
    """Yield the attributes that a module has besides those of every module."""
    for name, value in vars(module).items():
        if name not in _OF_EVERY_MODULE and not isinstance(value, _LEAVES):
            yield value


_COUNT = "num_batches_tracked"
"""A buffer of batch norm. Batch norm reads it only if its momentum is None."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def _of_function(function: FunctionType) -> Iterator[object]:
    """Yield what a function reads from its closure, its defaults and its globals."""
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
    """Return the names that code, and the functions defined in it, may look up among the globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*(_names(constant) for constant in inner))
