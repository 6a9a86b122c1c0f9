"""Attributes that noclobber replaces while it is on, and puts back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType

from noclobber.observe.torch_api.frames import passed_over

_ABSENT = object()


class Patches:
    """Replaced attributes, put back in reverse order. An attribute that somebody else replaced meanwhile stays.

    `replacing` is called with each function that takes the place of another.
    """

    def __init__(self, replacing: Callable[[FunctionType], object] = lambda function: None) -> None:
        self._replacing = replacing
        self._made: list[tuple[type | ModuleType, str, object, object]] = []

    def put(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Set `owner.name`, and remember what the owner itself held: nothing where it only inherits the name."""
        self._made.append((owner, name, vars(owner).get(name, _ABSENT), passed_over(value)))
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        for function in (value.fget, value.fset) if isinstance(value, property) else (inner,):
            if isinstance(function, FunctionType):
                self._replacing(function)
        if isinstance(inner, FunctionType):  # pickle finds a function by these
            path = [owner.__module__, owner.__qualname__] if isinstance(owner, type) else [owner.__name__]
            inner.__module__, inner.__qualname__ = path[0], ".".join([*path[1:], name])
        setattr(owner, name, value)

    def undo(self) -> None:
        for owner, name, before, value in reversed(self._made):
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._made.clear()
