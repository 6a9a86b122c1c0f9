"""Backward calls: what the engine is asked for, and the watchers of the beginning and the end of each call."""

from __future__ import annotations

from collections.abc import Callable

from noclobber.model.forks import lock
from noclobber.model.reports.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls.watchers import Watchers, finish
from noclobber.observe.core.seen.records import Backward

End = Callable[[object, BaseException | None], ClobberError | None]
"""Called when a backward call has ended, with what it returned and what it raised, one of them None. Returns the error
that the call raises instead of returning, None for none."""
Ended = Callable[[Backward, object, BaseException | None], ClobberError | None]
"""Called as End is, with the call."""


class BackwardCalls(Watchers[End, Backward]):
    """The watchers of backward calls. Most calls need none of them, and then cost little."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.special: Watchers[End, Backward] = Watchers(None, None)
        """The watchers of the calls of `torch.autograd.grad`, and of those with `create_graph`."""
        self.with_python: Watchers[End, Backward] = Watchers(None, None)
        """Those that are told once in each call, before any Python code runs in it."""
        self._ends: list[tuple[Way, Ended]] = []
        self._beginning = lock()

    def watch_ends(self, way: Way, ended: Ended) -> None:
        """Call `ended` at the end of each call that raised, or that left something to compare (`Backward.later`)."""
        way.add(self._ends, (way, ended))

    def begins(self, call: Backward) -> None:
        """Tell the watchers that a call begins. What to call at its end goes into `call.ends`."""
        call.ends += self.begin(call)
        if call.call == "grad" or call.create_graph:
            call.ends += self.special.begin(call)

    def python_begins(self, call: Backward) -> None:
        """Tell the watchers that Python code may run in a call from now on."""
        with self._beginning:  # threads of the engine work for one call
            if not call.with_python:
                call.with_python = True
                call.ends += self.with_python.begin(call)

    def end(self, call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        """Call what the watchers want to be called at the end, the last first. Return the error to raise, if any."""
        left = self._ends if error is not None or call.later else []
        stopped = finish(left, call, result, error)
        ends, call.ends = call.ends, []  # they refer to the call, which would keep its graph until a garbage collection
        return finish(ends, result, error) or stopped
