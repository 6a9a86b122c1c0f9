"""Records as plain data, for JSON, and back: by the types of their fields, which are checked on the way."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from noclobber.model.source import Site, Span, told_site
from noclobber.model.typed import WrongType

RECORD = "record"
"""The key that names the record, where a field may hold several."""
_SPAN = ("path", "line", "column", "end_line", "end_column")
MOST_LINES = 100_000
"""Lines that one span may have; a file that says more is damaged."""


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


def built(kind: Any, data: Any) -> Any:
    """Return what `plain` or `named` made plain. Raises WrongType, WrongSpan and KeyError."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(args, data)
    if isinstance(kind, type) and is_dataclass(kind) and not isinstance(data, dict):
        raise WrongType(f"a {kind.__name__} is {type(data).__name__}, which it cannot be")
    if kind is Site:
        inside = data.get("inside")
        return told_site(span_in(data), None if inside is None else built(Site, inside))
    if isinstance(kind, type) and is_dataclass(kind):
        known = _fields(kind)
        given = {name: built(known[name], held) for name, held in data.items() if name in known}
        return kind(**given)
    if origin is tuple and isinstance(data, list):
        return tuple(built(args[0], one) for one in data)
    if origin is Literal and data in args:
        return data
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise WrongType(f"a field is {type(data).__name__}, which it cannot be")


def _one_of(kinds: tuple[Any, ...], data: Any) -> Any:
    if data is None and type(None) in kinds:
        return None
    others = [one for one in kinds if one is not type(None)]
    if len(others) == 1:
        return built(others[0], data)
    name = data.get(RECORD) if isinstance(data, dict) else None
    chosen = next((one for one in others if one.__name__ == name), None)
    if chosen is None:
        raise WrongType(f"`{RECORD}` names no record that noclobber makes")
    return built(chosen, data)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def span_out(span: Span) -> dict[str, Any]:
    """Return a span as plain data."""
    return {name: getattr(span, name) for name in _SPAN}


def span_in(data: dict[str, Any]) -> Span:
    """Read back what `span_out` made. Raises WrongSpan and KeyError."""
    for name in _SPAN[1:]:
        if data[name] < 0:
            raise WrongSpan(f"`{name}` is {data[name]}")
    if abs(data["end_line"] - data["line"]) > MOST_LINES:
        raise WrongSpan(f"no source has lines {data['line']} to {data['end_line']}")
    return Span(data["path"], data["line"], data["column"], data["end_line"], data["end_column"])
