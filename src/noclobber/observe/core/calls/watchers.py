"""Those who are told that a call begins, and then that it has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar, TypeVarTuple

from noclobber.model.reports.error import ClobberError
from noclobber.observe.core.boundary import Way

Args = TypeVarTuple("Args")
Ending = TypeVar("Ending", bound=Callable[..., Any])
Ends = list[tuple[Way, Ending]]
"""What to call at the end of a call, each with the way of seeing that wants it."""
ALWAYS: Collection[object] = (None,)


class Watchers(Generic[Ending, *Args]):
    """The watchers of calls of one kind. Each returns what is to be called at the end of the call, None for nothing.

    `nothing` is what that gets where the call could not begin.
    """

    def __init__(self, *nothing: object) -> None:
        self._nothing = nothing
        self.them: list[tuple[Way, Callable[[*Args], Ending | None], Collection[object]]] = []
        """Each with what must not be empty for it to be called. It is always the same object."""

    def watch(self, way: Way, begin: Callable[[*Args], Ending | None], among: Collection[object] = ALWAYS) -> None:
        """Call `begin` before every call while there is anything in `among`, until the way is taken off."""
        way.add(self.them, (way, begin, among))

    def begin(self, *args: *Args) -> Ends[Ending]:
        """Tell the watchers that a call begins, and return what to call at its end. Raises ClobberError if the call
        lacks what it needs; for those who were told before, it has ended then."""
        ends: Ends[Ending] = []
        try:
            for way, begin, among in tuple(self.them):
                if among and (end := way.guarded(begin, *args)) is not None:
                    ends.append((way, end))
        except BaseException:
            finish(ends, *self._nothing)
            raise
        return ends


def finish(ends: Ends[Any], *about: object) -> ClobberError | None:
    """Call what watchers want to be called at the end of a call, the last first. Return the error to raise, if any."""
    stopped = None
    for way, end in reversed(ends):
        stopped = way.guarded(end, *about, also_off=True) or stopped
    return stopped
