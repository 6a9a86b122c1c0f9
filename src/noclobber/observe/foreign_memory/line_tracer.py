"""The user's lines as they run, while asked for: by sys.monitoring on Python 3.12 and later, by sys.settrace before."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

from noclobber.model.source import Owner, is_settled, owner_of
from noclobber.observe.core.sites import Place, place_of

gettrace = sys.gettrace
"""Not by its name in `sys`, which is replaced while noclobber is on (exported_saves.py)."""

MOST_IDLE = 10_000
"""User lines told for nothing before monitoring them is given up."""


class _Here(threading.local):
    """The place that this thread has come to."""

    place: Place | None = None


class Lines:
    """Calls `passed(place)` in the thread that has just run the user's line at `place`, or has left it for another's.

    Frames of libraries are not followed: what they do, the user's line that called them did. `failed` is told of an
    exception of our own, which must not become the program's.
    """

    def __init__(self, passed: Callable[[Place], None], failed: Callable[[Exception], None]) -> None:
        self._passed = passed
        self._here = _Here()
        engine: type[_Monitored] | type[_Traced] = _Monitored if sys.version_info >= (3, 12) else _Traced
        self._engine: _Engine = engine(self._moved, failed)

    def start(self, frame: FrameType) -> bool:
        """Follow the calling thread, whose stack is `frame`'s; False where a tracer of the program's is in the way."""
        if self._engine.follows():
            return True
        self._here.place = place_of(frame)
        return self._engine.start(frame)

    def stop(self) -> None:
        """Follow nothing for now; a thread other than the caller's lets go at its next line."""
        self._engine.stop()
        self._here = _Here()

    def end(self) -> None:
        """Follow nothing any more, and leave the interpreter as it was."""
        self._engine.end()

    def callbacks(self) -> tuple[Callable[..., Any], ...]:
        """What the interpreter calls, wherever it is."""
        return self._engine.callbacks()

    def is_ours(self, tracer: object) -> bool:
        """Whether what `sys.gettrace` gives is ours."""
        return isinstance(self._engine, _Traced) and tracer is self._engine.trace

    def here(self) -> Place | None:
        """The user's line that the calling thread is in."""
        return self._here.place if self._engine.follows() else None

    def _moved(self, place: Place | None) -> None:
        """The calling thread begins a line, calls, or goes back to `place`."""
        here = self._here
        before, here.place = here.place, place
        if before is not None:
            self._passed(before)


class _Engine(Protocol):
    """How the interpreter tells where it is."""

    def callbacks(self) -> tuple[Callable[..., Any], ...]: ...
    def follows(self) -> bool: ...
    def start(self, frame: FrameType) -> bool: ...
    def stop(self) -> None: ...
    def end(self) -> None: ...


_user_files: dict[str, bool] = {}


def _is_users(code: CodeType) -> bool:
    path = code.co_filename
    known = _user_files.get(path)
    if known is None:
        owner = owner_of(path)
        known = owner is Owner.USER
        if is_settled(path, owner):
            _user_files[path] = known
    return known


class _Traced:
    """sys.settrace, of one thread at a time; leaves alone a tracer that the program has set (a debugger, coverage)."""

    def __init__(self, moved: Callable[[Place | None], None], failed: Callable[[Exception], None]) -> None:
        self._moved = moved
        self._on = False
        self._in_frame: Any = _guarded(self._event, failed)
        self.trace: Any = _guarded(_of_users_only(self._called), failed)

    def callbacks(self) -> tuple[Callable[..., Any], ...]:
        return self.trace, self._event

    def follows(self) -> bool:
        return self._on and gettrace() is self.trace

    def start(self, frame: FrameType | None) -> bool:
        tracer = gettrace()
        if tracer is not None and tracer is not self.trace:
            return False
        self._on = True
        while frame is not None:
            if frame.f_trace is None and _is_users(frame.f_code):
                frame.f_trace = self._in_frame
            frame = frame.f_back
        sys.settrace(self.trace)
        return True

    def stop(self) -> None:
        self._on = False
        self._let_go(sys._getframe(1))

    def end(self) -> None:
        self.stop()

    def _let_go(self, frame: FrameType | None) -> None:
        if gettrace() is self.trace:
            sys.settrace(None)
        while frame is not None:
            if frame.f_trace is self._in_frame:
                del frame.f_trace
            frame = frame.f_back

    def _called(self, frame: FrameType) -> Any:
        if not self._on:
            self._let_go(frame)
            return None
        self._moved((frame.f_code, frame.f_lasti, None))
        return self._in_frame if self._on else None

    def _event(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._on:
            self._let_go(frame)
        elif event == "line":
            self._moved((frame.f_code, frame.f_lasti, None))
        elif event == "return":
            del frame.f_trace  # a generator that goes on is called anew
            self._moved(place_of(frame.f_back))
            return None
        return self._in_frame if self._on else None


def _guarded(event: Callable[..., Any], failed: Callable[[Exception], None]) -> Callable[..., Any]:
    """What the interpreter may call: an exception would be the program's."""

    def guarded(*about: Any) -> Any:
        try:
            return event(*about)
        except Exception as failure:
            failed(failure)
            return None

    return guarded


def _of_users_only(called: Callable[[FrameType], Any]) -> Any:
    """A trace function; it runs on every call of a Python function, so what is not the user's must be quick."""
    is_users = _user_files.get

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if is_users(frame.f_code.co_filename) is False or not _is_users(frame.f_code):
            return None
        return called(frame)

    return trace


class _Monitored:
    """sys.monitoring, of all threads at once; a tracer of the program's does not mind it.

    Every change of what is monitored makes the interpreter go through all code anew (15 us for each function that runs
    next, Python 3.13). So `stop` leaves things as they are, until many lines have run for nothing.
    """

    def __init__(self, moved: Callable[[Place | None], None], failed: Callable[[Exception], None]) -> None:
        self._moved = moved
        self._failed = failed
        self._on = False
        self._idle = 0
        self._tool: int | None = None
        self._monitoring: Any = vars(sys).get("monitoring")  # not by its name, which Python 3.11 does not have

    def callbacks(self) -> tuple[Callable[..., Any], ...]:
        return self._line, self._entered, self._left

    def follows(self) -> bool:
        return self._on

    def start(self, frame: FrameType) -> bool:
        if self._tool is None:
            self._tool = next((tool for tool in (4, 3, 5) if self._monitoring.get_tool(tool) is None), None)
            if self._tool is None:
                return False
            self._monitoring.use_tool_id(self._tool, "noclobber")
            for event, call in self._calls():
                self._monitoring.register_callback(self._tool, event, _guarded(call, self._failed))
            self._monitoring.restart_events()  # else what an earlier tool of this number has disabled stays so
            self._monitoring.set_events(self._tool, sum(event for event, _ in self._calls()))
        self._on, self._idle = True, 0
        return True

    def stop(self) -> None:
        self._on = False

    def end(self) -> None:
        self._on = False
        tool, self._tool = self._tool, None
        if tool is not None:
            self._monitoring.set_events(tool, 0)
            for event, _ in self._calls():
                self._monitoring.register_callback(tool, event, None)
            self._monitoring.free_tool_id(tool)

    def _calls(self) -> tuple[tuple[int, Callable[..., Any]], ...]:
        on = self._monitoring.events
        entered, left = self._entered, self._left
        return (
            (on.LINE, self._line),
            (on.PY_START, entered),
            (on.PY_RESUME, entered),
            (on.PY_RETURN, left),
            (on.PY_YIELD, left),
        )

    def _line(self, code: CodeType, line: int) -> Any:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved((code, _caller().f_lasti, None))
        else:
            self._idle += 1
            if self._idle > MOST_IDLE:
                self.end()
        return None

    def _entered(self, code: CodeType, offset: int) -> Any:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved((code, offset, None))
        return None

    def _left(self, code: CodeType, offset: int, value: object) -> Any:
        if not _is_users(code):
            return self._monitoring.DISABLE
        if self._on:
            self._moved(place_of(_caller().f_back))
        return None


def _caller() -> FrameType:
    """The program's frame that the interpreter called back from: above the callback and what guards it (`_guarded`)."""
    return sys._getframe(3)


def statement(place: Place) -> Place:
    """A place where a line begins, or goes on, moved to the instruction of that line which most likely wrote.

    An assignment to items or slices, or an in-place operator, comes first; then a call; the widest of them.
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
