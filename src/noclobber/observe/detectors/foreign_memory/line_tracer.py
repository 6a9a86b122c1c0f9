"""Follows the user's lines as they run, on demand: sys.monitoring on Python 3.12 and later, sys.settrace before."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from noclobber.observe.core.seen.sites import KINDS, USER, Place, kind_of, place_of
from noclobber.observe.torch_api.frames import outward

gettrace = sys.gettrace
"""Python's own function. The name in `sys` is replaced while noclobber is on (exported_saves.py)."""

MOST_IDLE = 10_000
"""User lines that may run unused before monitoring ends."""

T = TypeVar("T")
Callback = Callable[..., object]
Trace = Callable[[FrameType, str, object], "Trace | None"]
"""A trace function: Python calls it with frame, event and argument; it returns the frame's tracer or None."""


class _Here(threading.local):
    """The place that this thread has reached."""

    place: Place | None = None


class _Following:
    """Calls `passed(place)` in a thread that has just run the user's line at `place`, or has left it for another.

    Frames of libraries are not followed: their work counts as that of the user's line that called them. `failed` gets
    an exception of noclobber's own, which must not reach the program.
    """

    def __init__(self, passed: Callable[[Place], None], failed: Callable[[Exception], None]) -> None:
        self._passed, self._failed = passed, failed
        self._here, self._on = _Here(), False

    def follows(self) -> bool:
        return self._on

    def here(self) -> Place | None:
        """Return the user's line that the calling thread is in; None if nothing is followed."""
        return self._here.place if self.follows() else None

    def stop(self) -> None:
        """Stop following for now. Threads other than the calling thread stop at their next line."""
        self._on, self._here = False, _Here()

    def is_ours(self, tracer: object) -> bool:
        """Return True if `tracer`, as `sys.gettrace` returns it, is noclobber's."""
        return False

    def _moved(self, place: Place | None) -> None:
        """Note that the calling thread begins a line, enters a call or goes back to `place`; report the line before."""
        here = self._here
        before, here.place = here.place, place
        if before is not None:
            self._passed(before)

    def _guarded(self, event: Callable[..., T]) -> Callable[..., T | None]:
        """Return a function that the interpreter may call. It raises nothing: an exception would reach the program."""

        def guarded(*about: object) -> T | None:
            try:
                return event(*about)
            except Exception as failure:
                self._failed(failure)
                return None

        return guarded


def _is_users(code: CodeType) -> bool:
    kind = KINDS.get(code.co_filename)
    return (kind_of(code.co_filename) if kind is None else kind) == USER


class _Traced(_Following):
    """Follows by sys.settrace, one thread at a time. It leaves a tracer of the program alone (a debugger, coverage)."""

    def __init__(self, passed: Callable[[Place], None], failed: Callable[[Exception], None]) -> None:
        super().__init__(passed, failed)
        self._in_frame: Trace = self._guarded(self._event)
        self.trace: Trace = self._guarded(self._called)

    def callbacks(self) -> tuple[Callback, ...]:
        """Return the functions that the interpreter may call, at any place of the program."""
        return self.trace, self._event

    def is_ours(self, tracer: object) -> bool:
        return tracer is self.trace

    def follows(self) -> bool:
        return self._on and gettrace() is self.trace

    def start(self, frame: FrameType) -> bool:
        """Follow the calling thread, now in `frame`. Return False if a tracer of the program is in the way."""
        if self.follows():
            return True
        self._here.place = place_of(frame)
        tracer = gettrace()
        if tracer is not None and tracer is not self.trace:
            return False
        self._on = True
        for one in outward(frame):
            if one.f_trace is None and _is_users(one.f_code):
                one.f_trace = self._in_frame
        sys.settrace(self.trace)
        return True

    def stop(self) -> None:
        super().stop()
        self._let_go(sys._getframe(1))

    def end(self) -> None:
        self.stop()

    def _let_go(self, frame: FrameType | None) -> None:
        if gettrace() is self.trace:
            sys.settrace(None)
        for one in outward(frame):
            if one.f_trace is self._in_frame:
                del one.f_trace

    def _called(self, frame: FrameType, *_: object) -> Trace | None:
        if not _is_users(frame.f_code):
            return None
        if not self._on:
            self._let_go(frame)
            return None
        self._moved((frame.f_code, frame.f_lasti, None))
        return self._in_frame if self._on else None

    def _event(self, frame: FrameType, event: str, argument: object) -> Trace | None:
        if not self._on:
            self._let_go(frame)
        elif event == "line":
            self._moved((frame.f_code, frame.f_lasti, None))
        elif event == "return":
            del frame.f_trace  # a generator that goes on is called again
            self._moved(place_of(frame.f_back))
            return None
        return self._in_frame if self._on else None


class _Monitored(_Following):
    """Follows by sys.monitoring, all threads at once. It does not disturb a tracer of the program.

    Each change of what is monitored makes the interpreter instrument all code again (15 us for each function that runs
    next, Python 3.13). So `stop` keeps the events on; they go off once many lines have run unused (`MOST_IDLE`).
    """

    def __init__(self, passed: Callable[[Place], None], failed: Callable[[Exception], None]) -> None:
        super().__init__(passed, failed)
        self._idle = 0
        self._tool: int | None = None
        self._monitoring: Any = vars(sys).get("monitoring")  # Python 3.11 has no `sys.monitoring`

    def callbacks(self) -> tuple[Callback, ...]:
        return self._line, self._entered, self._left

    def start(self, frame: FrameType) -> bool:
        if self._on:
            return True
        self._here.place = place_of(frame)
        if self._tool is None:
            self._tool = next((tool for tool in (4, 3, 5) if self._monitoring.get_tool(tool) is None), None)
            if self._tool is None:
                return False
            self._monitoring.use_tool_id(self._tool, "noclobber")
            for event, call in self._calls():
                self._monitoring.register_callback(self._tool, event, self._guarded(call))
            self._monitoring.restart_events()  # else events that an earlier tool of this number disabled stay off
            self._monitoring.set_events(self._tool, sum(event for event, _ in self._calls()))
        self._on, self._idle = True, 0
        return True

    def end(self) -> None:
        self._on = False
        tool, self._tool = self._tool, None
        if tool is not None:
            self._monitoring.set_events(tool, 0)
            for event, _ in self._calls():
                self._monitoring.register_callback(tool, event, None)
            self._monitoring.free_tool_id(tool)

    def _calls(self) -> tuple[tuple[int, Callback], ...]:
        on = self._monitoring.events
        entered, left = self._entered, self._left
        return (
            (on.LINE, self._line),
            (on.PY_START, entered),
            (on.PY_RESUME, entered),
            (on.PY_RETURN, left),
            (on.PY_YIELD, left),
        )

    def _line(self, code: CodeType, line: int) -> object:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved((code, _caller().f_lasti, None))
        else:
            self._idle += 1
            if self._idle > MOST_IDLE:
                self.end()
        return None

    def _entered(self, code: CodeType, offset: int) -> object:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved((code, offset, None))
        return None

    def _left(self, code: CodeType, offset: int, value: object) -> object:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved(place_of(_caller().f_back))
        return None


def _caller() -> FrameType:
    """Return the program's frame that the interpreter called back from, above the callback and `_guarded`."""
    return sys._getframe(3)


if sys.version_info >= (3, 12):
    Lines = _Monitored
else:
    Lines = _Traced


def statement(place: Place) -> Place:
    """Return the place of the instruction that most likely wrote, in the line that begins or goes on at `place`.

    Assignments to items or slices and in-place operators come first, then calls; of several, the widest.
    """
    code, lasti, inside = place
    best, line = (-1, (0, 0), lasti), None
    for instruction in dis.get_instructions(code):
        at = instruction.positions
        if instruction.offset < lasti or at is None or at.lineno is None:
            continue
        line = at.lineno if line is None else line
        if at.lineno != line:
            break
        width = ((at.end_lineno or line) - line, (at.end_col_offset or 0) - (at.col_offset or 0))
        best = max(best, (_rank(instruction), width, instruction.offset))
    return code, best[2], inside


def _rank(instruction: dis.Instruction) -> int:
    name = instruction.opname
    if name in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"):
        return 2
    if name == "BINARY_OP" and instruction.argrepr.endswith("="):
        return 2
    return 1 if name.startswith("CALL") and not name.startswith("CALL_INTRINSIC") else 0
