"""Backward calls: what the engine is asked for, and who hears of the beginning and the end of each call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from noclobber.model.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.records import Backward
from noclobber.observe.core.sites import place_of

End = Callable[[Any, BaseException | None], ClobberError | None]
"""Called when a backward call has ended, with what it returned or what it raised; gives what is to be raised instead of
returning."""
Begin = Callable[[Backward], End | None]
"""Called when a backward call is about to begin."""


class BackwardCalls:
    """Who hears of backward calls."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin]] = []

    def watch(self, way: Way, begin: Begin) -> None:
        """Tell `begin` of every call, until the way is taken off."""
        entry = (way, begin)
        self._watching.append(entry)
        way.at_end(lambda: self._watching.remove(entry))

    def begin(self, call: Backward) -> list[tuple[Way, End]]:
        """A call begins; gives who wants to hear of its end."""
        ends = [(way, way.guarded(partial(begin, call))) for way, begin in tuple(self._watching)]
        return [(way, end) for way, end in ends if end is not None]


def read(outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Backward:
    """The engine's arguments, as `torch.autograd.backward` and `grad` pass them (torch 2.13; self_tests.py tries it).

    They are (outputs, gradients, retain_graph, create_graph, inputs), and `accumulate_grad` by its name.
    """
    gradients, _, create_graph, inputs = (*args, *(None,) * 4)[:4]
    call = "backward" if kwargs.get("accumulate_grad") else "grad"
    return Backward(
        place_of(sys._getframe(1)), outputs, call, gradients or (), inputs or (), create_graph=bool(create_graph)
    )
