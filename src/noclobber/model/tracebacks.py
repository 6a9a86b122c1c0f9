"""Takes noclobber's frames out of exceptions, so that they read as they would without noclobber."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from noclobber.model.source import Owner, owner_of


def shown_with(error: BaseException) -> Iterator[BaseException]:
    """Return all exceptions that Python shows with one, itself first: those that it came from, and those in a group."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__context__ if one.__cause__ is None and not one.__suppress_context__ else one.__cause__)
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def without_own_frames(error: BaseException) -> None:
    """Cut noclobber's frames out of the traceback of an exception, and of all that Python shows with it.

    In an `except` block the cut lasts: a `raise` there does not add the frame of the block again.
    """
    for one in shown_with(error):
        _cut(one)


def _cut(error: BaseException) -> None:
    every, traceback = [], error.__traceback__
    while traceback is not None:
        every.append(traceback)
        traceback = traceback.tb_next
    kept = [one for one in every if owner_of(one.tb_frame.f_code.co_filename) is not Owner.NOCLOBBER]
    if len(kept) < len(every):
        for one in reversed(kept):
            traceback = TracebackType(traceback, one.tb_frame, one.tb_lasti, one.tb_lineno)
        error.__traceback__ = traceback
