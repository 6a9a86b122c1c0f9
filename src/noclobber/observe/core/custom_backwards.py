"""The backward of custom Functions, the only Python that autograd calls unasked: one wrapper tells who watches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from noclobber.observe.core.boundary import Way
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.frames import passed_over

End = Callable[[Any], object]
"""Called with what the backward returned, None where it raised."""
Begin = Callable[[Any, tuple[Any, ...]], End | None]
"""Called with the node and what it is given."""


class CustomBackwards:
    """Who hears of them."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin]] = []

    def watch(self, way: Way, begin: Begin, *, for_good: bool = False) -> None:
        """Tell `begin` of every call, until the recorder disarms, or `for_good`."""
        entry = (way, begin)
        self._watching.append(entry)
        if not for_good:
            way.at_end(lambda: self._watching.remove(entry))

    def begin(self, node: Any, args: tuple[Any, ...]) -> list[tuple[Way, End]]:
        """A backward begins; gives who wants to hear of its end. Raises ClobberError where it lacks what it needs."""
        ends: list[tuple[Way, End]] = []
        try:
            for way, begin in tuple(self._watching):
                if (end := way.guarded(partial(begin, node, args))) is not None:
                    ends.append((way, end))
        except BaseException:
            self.end(ends, None)
            raise
        return ends

    def end(self, ends: list[tuple[Way, End]], result: Any) -> None:
        """It has ended."""
        for way, end in reversed(ends):
            way.entry(end, also_off=True)(result)


def natives() -> dict[str, Any]:
    """PyTorch's own methods that run a backward, by name."""
    owner = private.lookup("autograd.function.BackwardCFunction")
    return {name: getattr(owner, name) for name in ("apply", "apply_boxed") if hasattr(owner, name)}


def arm(customs: CustomBackwards, way: Way) -> None:
    """Be there whenever the backward of a custom Function runs."""
    owner = private.lookup("autograd.function.BackwardCFunction")
    for name, native in natives().items():
        way.patches.put(owner, name, around(way, native, customs))


def of_node(way: Way, node: Callable[[], Any], name: str, customs: CustomBackwards) -> Callable[..., Any]:
    """The same for one node, as its own attribute of that name: also once everything else is disarmed."""
    owner = private.lookup("autograd.function.BackwardCFunction")

    def apply(*args: Any) -> Any:
        itself, result = node(), None
        ends = way.guarded(lambda: customs.begin(itself, args))
        try:
            result = getattr(owner, name)(itself, *args)
        finally:
            if ends:
                way.guarded(lambda: customs.end(ends, result))
        return result

    return passed_over(apply)


def around(way: Way, native: Any, customs: CustomBackwards) -> Callable[..., Any]:
    """A method that runs a backward, and tells of it."""

    def apply(self: Any, *args: Any) -> Any:
        result, ends = None, way.guarded(lambda: customs.begin(self, args))
        try:
            result = native(self, *args)
        finally:
            if ends:
                way.guarded(lambda: customs.end(ends, result))
        return result

    return apply
