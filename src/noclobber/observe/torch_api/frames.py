"""Python frames: the program's above noclobber's, which may be missing, and noclobber's, which warnings must skip."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import TypeVar
from warnings import WarningMessage

from noclobber.model.source import PASSED_OVER, Owner, owner_of

Value = TypeVar("Value")


def frame_above(depth: int) -> FrameType:
    """Return the frame `depth` calls above the calling frame, or the outermost frame where there are fewer.

    PyTorch also calls Python from threads that have no Python frame of their own. There the called function is the
    outermost frame (torch.jit.fork on torch 2.13; tests/observe/core/test_forked.py).
    """
    frame = sys._getframe(1)
    while depth and frame.f_back is not None:
        frame, depth = frame.f_back, depth - 1
    return frame


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_engine_reading() -> bool:
    """Return False where code of the program reads a save, as a hook that asks a node for `_saved_self`."""
    frames = outward(sys._getframe(1))
    first = next((one for one in frames if owner_of(one.f_code.co_filename) is not Owner.NOCLOBBER), None)
    return first is None or first.f_code.co_name == "_engine_run_backward"


def passed_over(value: Value) -> Value:
    """Make warnings and logging skip a function of noclobber's, or the functions of a property or class method.

    Used on functions that call code of the program. A warning in that code may blame a frame further up. It must blame
    the same frame as without noclobber, because filters show a warning once for each place.
    """
    if isinstance(value, property):
        for function in (value.fget, value.fset, value.fdel):
            passed_over(function)
    elif isinstance(value, (classmethod, staticmethod)):
        passed_over(value.__func__)
    elif isinstance(value, FunctionType) and owner_of(value.__code__.co_filename) is Owner.NOCLOBBER:
        value.__code__ = _renamed(value.__code__)
    return value


@lru_cache(maxsize=1024)
def _renamed(code: CodeType) -> CodeType:
    return code.replace(co_filename=PASSED_OVER)


def led_to(message: WarningMessage) -> FrameType | None:
    """Return the program's frame that led to the noclobber frame which a warning blames.

    None where the warning blames no frame of noclobber's. Python notes in each module what it has shown. Those notes
    are cleared for noclobber's modules, because many places of a program lead to one line of noclobber.
    """
    frame: FrameType | None = None
    if owner_of(message.filename) is Owner.NOCLOBBER:
        frame = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (message.filename, message.lineno):
            frame = frame.f_back
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.NOCLOBBER:
        frame.f_globals.get("__warningregistry__", {}).clear()
        frame = frame.f_back
    return frame
