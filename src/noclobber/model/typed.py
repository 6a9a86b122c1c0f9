"""Checks that plain data which became dataclasses holds what their types say: a file may hold anything."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class WrongType(TypeError):
    """A field holds what it cannot hold. The text names the field."""


def require_types(value: Any) -> None:
    """Check a dataclass and all dataclasses in it. Raises WrongType."""
    hints = _hints(value.__class__)
    for one in fields(value):
        held = getattr(value, one.name)
        if not _fits(held, hints[one.name]):
            raise WrongType(f"`{one.name}` is {type(held).__name__}, which it cannot be")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, args[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, args[0]) for one in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, kind):
        return False
    if is_dataclass(kind):
        require_types(value)
    return True
