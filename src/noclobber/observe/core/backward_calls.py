"""Backward calls: what the engine is asked for, and the watchers of the beginning and the end of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType

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
        ends = []
        for way, begin in tuple(self._watching):
            if not way.on:
                continue
            try:  # as `Way.guarded` does, which would cost more than most watchers
                end = begin(call)
            except ClobberError:
                raise
            except Exception as failure:
                way.fail(failure)
                continue
            if end is not None:
                ends.append((way, end))
        return ends


def read(frame: FrameType, outputs: Iterable[object], args: tuple[object, ...], kwargs: dict[str, object]) -> Backward:
    """Return the backward call that the engine's arguments ask for. `frame` calls the engine.

    `torch.autograd.backward` and `grad` pass (outputs, gradients, retain_graph, create_graph, inputs) by position and
    `accumulate_grad` by name (torch 2.13; self_tests.py tests it).
    """
    gradients, _, create_graph, inputs = (*args, *(None,) * 4)[:4]
    call = "backward" if kwargs.get("accumulate_grad") else "grad"
    place, create_graph = place_of(frame), bool(create_graph)
    return Backward(place, outputs, call, gradients or (), inputs or (), create_graph=create_graph, frame=frame)
