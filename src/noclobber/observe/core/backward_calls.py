"""Backward calls: what the engine is asked for, and the watchers of the beginning and the end of each call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial

from noclobber.model.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.records import Backward
from noclobber.observe.core.sites import place_of

End = Callable[[object, BaseException | None], ClobberError | None]
"""Called when a backward call has ended, with what it returned and what it raised, one of them None. Returns the error
that the call raises instead of returning, None for none."""
Begin = Callable[[Backward], End | None]
"""Called before a backward call begins. Returns what to call at the end, None for nothing."""


class BackwardCalls:
    """The watchers of backward calls."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin]] = []

    def watch(self, way: Way, begin: Begin) -> None:
        """Call `begin` before every call, until the way is taken off."""
        entry = (way, begin)
        self._watching.append(entry)
        way.at_end(lambda: self._watching.remove(entry))

    def begin(self, call: Backward) -> list[tuple[Way, End]]:
        """Tell the watchers that a call begins, and return what to call at its end."""
        ends = [(way, way.guarded(partial(begin, call))) for way, begin in tuple(self._watching)]
        return [(way, end) for way, end in ends if end is not None]


def read(outputs: Iterable[object], args: tuple[object, ...], kwargs: dict[str, object]) -> Backward:
    """Return the backward call that the engine's arguments ask for.

    `torch.autograd.backward` and `grad` pass (outputs, gradients, retain_graph, create_graph, inputs) by position and
    `accumulate_grad` by name (torch 2.13; self_tests.py tests it).
    """
    gradients, _, create_graph, inputs = (*args, *(None,) * 4)[:4]
    call = "backward" if kwargs.get("accumulate_grad") else "grad"
    return Backward(
        place_of(sys._getframe(1)), outputs, call, gradients or (), inputs or (), create_graph=bool(create_graph)
    )
