"""Records as plain data, for JSON, and back: by the types of their fields, which are checked on the way."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from noclobber.model.source import Site, Span, told_site

RECORD = "record"
"""The key that names the record, where a field may hold several."""
_SPAN = ("path", "line", "column", "end_line", "end_column")
MOST_LINES = 100_000
"""Lines that one span may have; a file that says more is damaged."""


class WrongType(TypeError):
    """A field holds what it cannot hold. The text names the field."""


class WrongSpan(ValueError):
    """A span that no source has. Its text says why."""


def plain(value: Any) -> Any:
    """Return a record as plain data, without the fields that have their defaults. A place becomes its span."""
    if isinstance(value, Site):
        inside = {} if value.inside is None else {"inside": plain(value.inside)}
        return {**span_out(value.span()), **inside}
    if is_dataclass(value):
        held = ((one.name, getattr(value, one.name), _default(one)) for one in fields(value))
        return {name: plain(each) for name, each, default in held if each != default}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value


def named(value: Any) -> dict[str, Any] | None:
    """Return a record as plain data with the name of its class, for a field that may hold several; None for None."""
    return None if value is None else {RECORD: type(value).__name__, **plain(value)}


def built(kind: Any, data: Any, name: str = "it") -> Any:
    """Return what `plain` or `named` made plain. `name` is that of the field which held it.

    A record holds a span as its own path, lines and columns. Raises WrongType, WrongSpan, KeyError and ValueError.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(args, data, name)
    if kind is Any or (kind in (int, str, bool) and type(data) is kind) or (origin is Literal and data in args):
        return data
    if origin is tuple and isinstance(data, list):
        return tuple(built(args[0], one, name) for one in data)
    if origin is dict and isinstance(data, dict):
        return {key: built(args[1], one, name) for key, one in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if is_dataclass(kind) and isinstance(data, dict):
        return _record(kind, data)
    raise WrongType(f"`{name}` is {type(data).__name__}, which it cannot be")


def _record(kind: Any, data: dict[str, Any]) -> Any:
    if kind is Site:
        return told_site(_span_in(data), built(Site | None, data.get("inside"), "inside"))
    given = {}
    for name, (hint, is_needed) in _fields(kind).items():
        if hint is Span:
            given[name] = _span_in(data)
        elif is_needed or name in data:
            given[name] = built(hint, data[name], name)
    return kind(**given)


def _one_of(kinds: tuple[Any, ...], data: Any, name: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    others = [one for one in kinds if one is not type(None)]
    if len(others) == 1:
        return built(others[0], data, name)
    record = data.get(RECORD) if isinstance(data, dict) else None
    chosen = next((one for one in others if one.__name__ == record), None)
    if chosen is None:
        raise WrongType(f"`{RECORD}` names no record that noclobber makes")
    return built(chosen, data, name)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a record, and whether it has no default."""
    hints = get_type_hints(kind)
    return {one.name: (hints[one.name], _default(one) is MISSING) for one in fields(kind)}


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def some_of(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def span_out(span: Span) -> dict[str, Any]:
    return some_of(span, *_SPAN)


def _span_in(data: dict[str, Any]) -> Span:
    """Read back what `span_out` made. Raises WrongType, WrongSpan and KeyError."""
    numbers = {name: built(int, data[name], name) for name in _SPAN[1:]}
    for name, number in numbers.items():
        if number < 0:
            raise WrongSpan(f"`{name}` is {number}")
    if abs(numbers["end_line"] - numbers["line"]) > MOST_LINES:
        raise WrongSpan(f"no source has lines {numbers['line']} to {numbers['end_line']}")
    return Span(built(str, data["path"], "path"), **numbers)
