"""Python frames: those above noclobber's, which may be missing, and its own, which the program is not to count."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import TypeVar
from warnings import WarningMessage

from noclobber.model.source import PASSED_OVER, Owner, owner_of

Value = TypeVar("Value")


def frame_above(depth: int) -> FrameType:
    """The frame this many calls above the calling one, or the outermost there is.

    PyTorch calls into Python from threads that have no Python frame of their own: there what it calls is the outermost
    (torch.jit.fork on torch 2.13; tests/observe/core/test_forked.py).
    """
    frame = sys._getframe(1)
    while depth and frame.f_back is not None:
        frame, depth = frame.f_back, depth - 1
    return frame


def passed_over(value: Value) -> Value:
    """Let warnings and logging pass over a function of noclobber's, or the functions of a property or class method.

    For what calls code of the program: a warning there that blames a frame further up is to blame the one it does bare,
    as filters show a warning once for each place.
    """
    if isinstance(value, property):
        for one in (value.fget, value.fset, value.fdel):
            passed_over(one)
    elif isinstance(value, (classmethod, staticmethod)):
        passed_over(value.__func__)
    elif isinstance(value, FunctionType) and owner_of(value.__code__.co_filename) is Owner.NOCLOBBER:
        value.__code__ = _renamed(value.__code__)
    return value


@lru_cache(maxsize=1024)
def _renamed(code: CodeType) -> CodeType:
    return code.replace(co_filename=PASSED_OVER)


def led_to(message: WarningMessage) -> FrameType | None:
    """The frame that led to the frame of noclobber's that a warning blames; None where it blames another.

    Python notes what it has shown for each module. That is taken back for noclobber's, as many places lead to one line.
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
