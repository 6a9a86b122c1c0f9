"""What operators keep for backward: a live probe of any callable, and the formulas of the installed torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noclobber.model.reports.probe import Probe
from noclobber.render.tables.probe import html, table


class Probed(Probe):
    """A Probe that shows itself as a table, in a terminal and in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return table(self).rstrip("\n")

    def _repr_html_(self) -> str:
        return html(self)


def probe(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Probed:
    """Return which tensors of `function(*args, **kwargs)` may be overwritten before backward, and which may not.

    `function` is any callable: an operator, a module, a custom Function, a custom operator. It gets copies of its
    tensors, and a module is copied too; what is in a closure is not. If no argument requires a gradient, each
    floating-point argument does. Raises what the function raises.
    """
    from noclobber.ops import probing

    seen = probing.probe(function, args, kwargs)
    return Probed(seen.call, seen.operands, seen.bytes, seen.own, seen.differentiable, seen.fields, seen.notes)
