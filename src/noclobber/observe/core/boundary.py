"""Ways of seeing, and the error boundary: each is armed by itself, and where it fails it is taken off alone.

Every call from PyTorch or from the program into noclobber passes `Way.guarded`, a function that `Way.entry` made, or a
`try` that ends in `Way.fail`. Only ClobberError gets through: it is what the program is to be told, in PyTorch's words
where PyTorch would raise as well. Everything else is noclobber's own fault; the program never sees it, the report does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, ParamSpec, TypeVar

from noclobber.model.error import ClobberError, UnsupportedTorch
from noclobber.model.report import Lost
from noclobber.observe.torch_api.patches import Patches

P = ParamSpec("P")
T = TypeVar("T")


class Way:
    """One way of seeing: what a report calls it, what it has replaced in PyTorch, and how it ends.

    After a failure it is not `on`: what it has put in PyTorch's place stays there until the recorder disarms, and does
    nothing any more, as PyTorch may be in the midst of going through its hooks. `lasting` ones go on, and only what
    failed is lost: they keep no state that a failure could leave half done. `told` hears of each failure.
    """

    def __init__(self, name: str, told: Callable[[Lost], None], *, lasting: bool = False) -> None:
        self.name = name
        self.on = True
        self.patches = Patches()
        self._told = told
        self._lasting = lasting
        self._endings: list[Callable[[], object]] = []

    def arm(self, arm: Callable[[Way], None]) -> None:
        """Begin with `arm`. A failure is told, and what was begun is undone."""
        try:
            arm(self)
        except Exception as failure:
            self.on = False
            self.end()
            self._told(lost(self.name, failure))

    def at_end(self, end: Callable[[], object]) -> None:
        """Call `end` when the recorder disarms, before what is replaced is put back."""
        self._endings.append(end)

    def end(self) -> None:
        """Undo everything; what somebody else has wrapped since stays in place."""
        endings, self._endings = self._endings, []
        for end in (*reversed(endings), self.patches.undo):
            try:
                end()
            except Exception as failure:
                self._told(lost(self.name, failure))

    def guarded(self, make: Callable[[], T]) -> T | None:
        """What `make` makes; None where it fails, or has failed before. Raises ClobberError only."""
        if not self.on:
            return None
        try:
            return make()
        except ClobberError:
            raise
        except Exception as failure:
            self.fail(failure)
            return None

    def entry(self, function: Callable[P, T], *, also_off: bool = False) -> Callable[P, T | None]:
        """A function that PyTorch or the program may call: as `guarded`. One that undoes something is to run also
        where the way is off."""

        @functools.wraps(function)
        def entered(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if not (self.on or also_off):
                return None
            try:
                return function(*args, **kwargs)
            except ClobberError:
                raise
            except Exception as failure:
                self.fail(failure)
                return None

        return entered

    def fail(self, failure: Exception) -> None:
        """Tell what failed; be off from now on, unless this is `lasting`."""
        self.on = self.on and self._lasting
        with contextlib.suppress(Exception):
            self._told(lost(self.name, failure))


def lost(way: str, failure: Exception) -> Lost:
    """What to say of a failure. It holds text alone: the frames of an exception would keep tensors alive."""
    if isinstance(failure, UnsupportedTorch):
        return Lost(way, str(failure))
    at, innermost = "", failure.__traceback__
    while innermost is not None:
        at = f", {PurePath(innermost.tb_frame.f_code.co_filename).name}:{innermost.tb_lineno}"
        innermost = innermost.tb_next
    trace = "".join(traceback.format_exception(failure)) if os.environ.get("NOCLOBBER_DEBUG") else ""
    return Lost(way, f"{_words(failure)}{at}", internal=True, trace=trace)


def _words(failure: Any) -> str:
    """The type and the first line of an exception, whose own `str` may fail as well."""
    try:
        return "".join(f"{type(failure).__name__}: {failure}".splitlines()[:1])
    except Exception:
        return type(failure).__name__
