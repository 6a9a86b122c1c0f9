"""Backward calls: what the engine is asked for, and the watchers of the beginning and the end of each call."""

from __future__ import annotations

from collections.abc import Callable, Collection

from noclobber.model.error import ClobberError
from noclobber.model.forks import lock
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.records import Backward

End = Callable[[object, BaseException | None], ClobberError | None]
"""Called when a backward call has ended, with what it returned and what it raised, one of them None. Returns the error
that the call raises instead of returning, None for none."""
Begin = Callable[[Backward], End | None]
"""Called before a backward call begins. Returns what to call at the end, None for nothing."""
Ended = Callable[[Backward, object, BaseException | None], ClobberError | None]
"""Called as End is, with the call."""
ALWAYS: Collection[object] = (None,)


class BackwardCalls:
    """The watchers of backward calls. Most calls need none of them, and then cost little."""

    def __init__(self) -> None:
        self.plain: list[tuple[Way, Begin, Collection[object]]] = []
        """The watchers of every call, each with what must not be empty for it to be called."""
        self.special: list[tuple[Way, Begin]] = []
        """The watchers of calls that are more than `backward()`: of `torch.autograd.grad`, or with `create_graph`."""
        self.with_python: list[tuple[Way, Begin]] = []
        """The watchers of calls in which Python code runs."""
        self._ends: list[tuple[Way, Ended]] = []
        self._beginning = lock()

    def watch(self, way: Way, begin: Begin, among: Collection[object] = ALWAYS) -> None:
        """Call `begin` before every call while there is anything in `among`, until the way is taken off."""
        way.add(self.plain, (way, begin, among))

    def watch_special(self, way: Way, begin: Begin) -> None:
        """Call `begin` before each call of `torch.autograd.grad`, and before each with `create_graph`."""
        way.add(self.special, (way, begin))

    def watch_python(self, way: Way, begin: Begin) -> None:
        """Call `begin` once in each call before any Python code runs in it."""
        way.add(self.with_python, (way, begin))

    def watch_ends(self, way: Way, ended: Ended) -> None:
        """Call `ended` at the end of each call that raised, or that left something to compare (`Backward.later`)."""
        way.add(self._ends, (way, ended))

    def begin(self, call: Backward) -> None:
        """Tell the watchers that a call begins. What to call at its end goes into `call.ends`."""
        for way, begin, among in tuple(self.plain):
            if among:
                _begins(call, way, begin)
        if call.call == "grad" or call.create_graph:
            for way, begin in tuple(self.special):
                _begins(call, way, begin)

    def python_begins(self, call: Backward) -> None:
        """Tell the watchers that Python code may run in a call from now on."""
        with self._beginning:  # threads of the engine work for one call
            if call.with_python:
                return
            call.with_python = True
            for way, begin in tuple(self.with_python):
                _begins(call, way, begin)

    def end(self, call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        """Call what the watchers want to be called at the end, the last first. Return the error to raise, if any."""
        stopped = None
        if error is not None or call.later:
            for way, ended in reversed(self._ends):
                stopped = way.guarded(ended, call, result, error, also_off=True) or stopped
        ends, call.ends = call.ends, []  # they refer to the call, which would keep its graph until a garbage collection
        for way, end in reversed(ends):
            stopped = way.guarded(end, result, error, also_off=True) or stopped
        return stopped


def _begins(call: Backward, way: Way, begin: Begin) -> None:
    end = way.guarded(begin, call)
    if end is not None:
        call.ends.append((way, end))
