"""What the program can reach from its variables, by the names that it has for it."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import CO_OPTIMIZED, getattr_static
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch

from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.seen import reads

_DEEPEST = 6
_MOST = 20_000
_IMPORTS = {"__builtins__", "__loader__", "__spec__"}
"""Variables of every file, which lead to all that its loader knows (pytest's: 19,000 objects) and to no tensor."""


class Held(NamedTuple):
    """A value that the program can reach. `scopes` are the code objects whose text may assign it, `owner` is what holds
    it; None for a variable."""

    name: str
    kind: Literal["name", "attribute", "item", "tuple"]
    value: Any
    scopes: tuple[CodeType, ...]
    owner: Any = None


def can_hold_another(held: Held) -> bool:
    """Return True if the program may put another tensor into the same attribute or item, and nothing else happens."""
    kind: Any = type(held.owner)
    if kind is FunctionType:
        return False  # it is a default
    if held.kind == "item":
        return kind in (list, dict, deque, OrderedDict, defaultdict)
    plain = (object.__setattr__, SimpleNamespace.__setattr__, torch.nn.Module.__setattr__)
    if held.kind != "attribute" or kind.__setattr__ not in plain:
        return False
    found = getattr_static(kind, held.name.rpartition(".")[2], None)
    return isinstance(found, MemberDescriptorType) or not hasattr(type(found), "__set__")


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a frame by name.

    Before Python 3.13 `f_locals` of a function is a dict that stays on the frame. It is emptied, so that it keeps no
    value alive for longer than the program does. Not where the program itself has that dict (`locals()`), nor under a
    trace function, after which Python writes it back (tests/observe/describe/test_holders.py).
    """
    held: Any = frame.f_locals
    found = dict(held)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED and sys.gettrace() is None:
        if sys.getrefcount(held) <= _REFERENCES:
            held.clear()
    return found


def constants(frames: Iterable[FrameType]) -> tuple[str, ...]:
    """Return the names of variables, and of attributes of `self`, that hold numbers or tensors which require no
    gradient, or rows of such, in each of these frames that has the name."""
    known: dict[str, bool] = {}
    for frame in frames:
        own = variables(frame)
        itself = own.get("self")
        held = reads.of_module(itself, states=True) if isinstance(itself, torch.nn.Module) else reads.inside(itself)
        for name, value in [*own.items(), *((f"self.{name}", one) for name, one in held)]:
            rows = value if type(value) in _ROWS and len(value) <= _MOST_ROWS else [value]
            known[name] = known.get(name, True) and all(map(_is_constant, rows))
    return tuple(name for name, calm in known.items() if calm)


def _is_constant(value: object) -> bool:
    is_number = isinstance(value, (int, float, complex))
    return is_number or (isinstance(value, torch.Tensor) and not value.requires_grad)


_ROWS = (list, tuple)
_MOST_ROWS = 64


_REFERENCES = 3
"""References to `f_locals` in `variables`: of the frame, of the variable, of the argument."""


def reachable(frames: Iterable[FrameType]) -> Iterator[Held]:
    """Yield what the variables of frames lead to, first what is a few steps away."""
    waiting, seen, held = deque[tuple[int, Held]](), dict[int, object](), 0
    methods = cache(_methods)  # of a class with thousands of objects; later it may have other methods
    for frame in frames:
        code = frame.f_code
        shared = {} if frame.f_locals is frame.f_globals else frame.f_globals
        own = variables(frame)  # which empties `f_locals`, after the question for it
        found = [*own.items(), *((name, value) for name, value in list(shared.items()) if name not in own)]
        waiting += [(0, Held(name, "name", value, (code,))) for name, value in found if name not in _IMPORTS]
    while waiting and held < _MOST:
        held += 1
        depth, one = waiting.popleft()
        yield one
        if depth < _DEEPEST and id(one.value) not in seen and not isinstance(one.value, torch.Tensor):
            seen[id(one.value)] = one.value  # held, so that no other object gets its id
            waiting += [(depth + 1, part) for part in _parts(one, methods)]


def _parts(held: Held, methods: Callable[[type], tuple[CodeType, ...]]) -> Iterator[Held]:
    """Yield what a value holds: items of lists, tuples and dicts, attributes of objects, variables of functions."""
    value, name, kind, scopes = held.value, held.name, type(held.value), held.scopes
    if kind is FunctionType and owner_of(value.__code__.co_filename) is not Owner.USER:
        return
    if issubclass(kind, torch.nn.Module):
        codes = methods(kind) or scopes
        for key, one in reads.of_module(value, states=True):
            yield Held(f"{name}[{key}]" if str(key).isdigit() else f"{name}.{key}", "attribute", one, codes, value)
        return
    for key, one in reads.inside(value):
        if isinstance(key, reads.Key):
            if key.key is None:  # the key of an item is no plain value
                continue
            yield Held(f"{name}[{key.key!r}]", "tuple" if issubclass(kind, tuple) else "item", one, scopes, value)
        elif isinstance(key, reads.Variable):
            yield Held(key.name, "name", one, (value.__code__,), value)
        else:
            yield Held(f"{name}.{key}", "attribute", one, methods(kind) or scopes, value)


def _methods(kind: type) -> tuple[CodeType, ...]:
    """Return the code of a class's methods that the program itself wrote."""
    of_all = (getattr(one, "__code__", None) for owner in kind.__mro__ for one in list(vars(owner).values()))
    return tuple(one for one in of_all if isinstance(one, CodeType) and owner_of(one.co_filename) is Owner.USER)
