"""The backward of custom Functions, the only Python code that autograd calls unasked, and its one wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls.watchers import Watchers, finish
from noclobber.observe.torch_api.frames import passed_over

CustomBackwards = Watchers[Callable[[object], object], torch.autograd.graph.Node, tuple[object, ...]]
"""The watchers of these backwards. Each is called with the node and its arguments, and at the end with what the
backward returned, or None if it raised."""


def natives() -> dict[str, Callable[..., object]]:
    """Return PyTorch's own methods that run a backward, by name."""
    names = ("apply", "apply_boxed")
    return {name: getattr(BackwardCFunction, name) for name in names if hasattr(BackwardCFunction, name)}


def arm(customs: CustomBackwards, way: Way) -> None:
    """Call the watchers whenever the backward of a custom Function runs."""
    for name, native in natives().items():
        way.patches.put(BackwardCFunction, name, _around(way, native, customs))


def of_node(way: Way, node: Callable[[], Any], name: str, customs: CustomBackwards) -> Callable[..., object]:
    """Return a function that runs the backward of one node and calls the watchers before and after it. It is to be set
    as the node's own attribute `name`.

    `node` returns the node. The function also works after everything else is disarmed.
    """

    def native(itself: torch.autograd.graph.Node, *args: object) -> object:
        return getattr(BackwardCFunction, name)(itself, *args)

    run = _around(way, passed_over(native), customs)
    return passed_over(lambda *args: run(node(), *args))


def _around(way: Way, native: Callable[..., object], customs: CustomBackwards) -> Callable[..., object]:
    """Return a method that runs a backward with `native` and calls the watchers before and after it."""

    def apply(self: torch.autograd.graph.Node, *args: object) -> object:
        result, ends = None, way.guarded(customs.begin, self, args)
        try:
            result = native(self, *args)
        finally:
            if ends:
                way.guarded(finish, ends, result)
        return result

    return passed_over(apply)
