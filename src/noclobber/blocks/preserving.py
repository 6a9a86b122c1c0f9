"""`preserve`: what backward needs is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar, overload

from noclobber import render
from noclobber.blocks import warn
from noclobber.blocks.block import Block
from noclobber.model.reports.kept import Kept
from noclobber.session.session import Session

P = ParamSpec("P")
R = TypeVar("R")


class preserve(Block):
    """Keep what backward needs in a block or a function: gradients are right in spite of in-place writes.

    Just before a write changes bytes that a save still needs, through whatever view or alias, these bytes are copied;
    backward then gets what was saved, even if it runs after the block. Checkpointed regions do so too: while a region
    runs again, the tensors that it reads from outside hold their values from forward. noclobber cannot keep bytes from
    a change that torch never sees (numpy, another process): then backward raises a ClobberError. Writes of hooks and
    custom backwards into gradients stay, because gradients are not saves. `report` says line by line what was kept.

    A block ends in the thread in which it began; elsewhere its end raises RuntimeError, as for `watch`.
    """

    _session: Session

    @overload
    def __new__(cls) -> Self: ...

    @overload
    def __new__(cls, function: Callable[P, R], /) -> Callable[P, R]: ...  # type: ignore[misc]  # as `@noclobber.preserve`

    def __new__(cls, function: Callable[P, R] | None = None, /) -> Any:  # type: ignore[misc]
        self = super().__new__(cls)
        self._open = {}
        self._session = Session(contents=True, keeping=True, notes=True)
        return self if function is None else self(function)

    def _begin(self) -> bool:
        self._session.start()
        return True

    def _end(self, is_watched: bool, error: BaseException | None, function: object = None) -> None:
        if error is not None:
            self._session.escaped(error)
        self._session.stop()
        warn.of_failures(self._session.failures)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What was copied: a record for each pair of lines, the most bytes first."""
        return self._session.keepings

    @property
    def report(self) -> str:
        """The same in words, a line for each pair of lines."""
        return render.kept(self.kept)

    def __str__(self) -> str:
        return self.report.rstrip("\n")

    def __repr__(self) -> str:
        return f"<noclobber.preserve: {self.report.splitlines()[0]}>"

    def _repr_html_(self) -> str:
        return render.preformatted(self.report)
