"""Ways of seeing, and the error boundary. Each way is armed by itself, and a way that fails is taken off alone.

Every call from PyTorch or from the program into noclobber passes `Way.guarded`, a function that `Way.entry` made, or a
`try` that ends in `Way.fail`. Only ClobberError gets through: it is meant for the program, and has PyTorch's words
where PyTorch would raise too. Every other error is noclobber's own fault: the program never sees it, the report does.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType
from typing import ParamSpec, TypeVar

from noclobber.model.reports.error import ClobberError, UnsupportedTorch
from noclobber.model.reports.report import Lost
from noclobber.model.source import Owner, owner_of
from noclobber.observe.torch_api.dispatch import compile_guard
from noclobber.observe.torch_api.dispatch.modes import plain
from noclobber.observe.torch_api.patches import Patches

P = ParamSpec("P")
T = TypeVar("T")


class Way:
    """One way of seeing: its name in a report, what it has replaced in PyTorch, and how it ends.

    After a failure the way is not `on`. Its replacements stay in PyTorch until the recorder disarms, because PyTorch
    may be going through its hooks at that moment, but they do nothing any more. A `lasting` way stays on, and only what
    failed is lost: it keeps no state that a failure could leave half done. `told` is called with each failure.
    """

    def __init__(self, name: str, told: Callable[[Lost], None], *, lasting: bool = False) -> None:
        self.name = name
        self.on = True
        # Renamed functions have no file by which torch.compile could know them (compile_guard.skip_ours).
        self.patches = Patches(functools.partial(compile_guard.never_compile, nor_its_calls=False))
        self._told = told
        self._lasting = lasting
        self._endings: list[Callable[[], object]] = []

    def arm(self, arm: Callable[[Way], None]) -> None:
        """Begin by calling `arm`. A failure is reported, and what was begun is undone."""
        try:
            arm(self)
        except Exception as failure:
            self.on = False
            self.end()
            self._told(lost(self.name, failure))

    def at_end(self, end: Callable[[], object]) -> None:
        """Call `end` when the recorder disarms, before the replaced attributes are put back."""
        self._endings.append(end)

    def end(self) -> None:
        """Undo everything, except what somebody else has wrapped meanwhile."""
        endings, self._endings = self._endings, []
        for end in (*reversed(endings), self.patches.undo):
            try:
                end()
            except Exception as failure:
                self._told(lost(self.name, failure))

    def add(self, those: list[T], one: T) -> None:
        """Add to a list until the recorder disarms."""
        those.append(one)
        self.at_end(lambda: those.remove(one))

    def before(self, owner: type | ModuleType, name: str, call: Callable[..., object]) -> None:
        """Call `call` before each call of a function of PyTorch, with its arguments."""
        native, first = getattr(owner, name), self.entry(call)

        @functools.wraps(native)
        def called(*args: object, **kwargs: object) -> object:
            first(*args, **kwargs)
            return native(*args, **kwargs)

        self.patches.put(owner, name, called)

    def after(self, owner: type | ModuleType, name: str, call: Callable[..., object]) -> None:
        """Call `call` after each call of a function of PyTorch that returns, with the result and the arguments."""
        native, then = getattr(owner, name), self.entry(call)

        @functools.wraps(native)
        def called(*args: object, **kwargs: object) -> object:
            result = native(*args, **kwargs)
            then(result, *args, **kwargs)
            return result

        self.patches.put(owner, name, called)

    def guarded(self, make: Callable[..., T], /, *args: object, also_off: bool = False, **kwargs: object) -> T | None:
        """Return what `make` returns of the arguments; None if it fails, or if the way is off. Raises only
        ClobberError.

        With `also_off` it is called while the way is off too, which a function that undoes something needs. The
        program's own `__torch_function__`, of a subclass or of a mode, sees nothing of what is asked of its tensors.
        """
        if not (self.on or also_off):
            return None
        try:
            with plain():
                return make(*args, **kwargs)
        except ClobberError:
            raise
        except Exception as failure:
            self.fail(failure)
            return None

    def entry(self, function: Callable[P, T], *, also_off: bool = False) -> Callable[P, T | None]:
        """Return a function that PyTorch or the program may call: it calls `function` as `guarded` does."""
        # A partial with keywords takes a third longer to call (Python 3.11).
        return functools.partial(self.guarded, function, **{"also_off": True} if also_off else {})

    def fail(self, failure: Exception) -> None:
        """Report a failure, and turn the way off unless it is `lasting`. Raises what a signal handler of the program
        has raised again: it is for the program."""
        if _is_of_a_handler(failure):
            raise failure
        self.on = self.on and self._lasting
        with contextlib.suppress(Exception):
            self._told(lost(self.name, failure))


def _is_of_a_handler(failure: Exception) -> bool:
    """Return True if one of the program's signal handlers has raised an error: as at any place, it may run here."""
    if isinstance(failure, RecursionError):  # no room to ask
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    called = [getattr(one, "__func__", one) for one in handlers if callable(one)]
    codes = {getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in called} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(failure.__traceback__))


_CALLS_OR_RAISES = ("CALL", "PRECALL", "RAISE", "RERAISE")


def is_own(error: BaseException) -> bool:
    """Return True for an error that a replaced function has made itself: not by a `raise`, which has PyTorch's words,
    and not in something that it called, which is the program's or PyTorch's."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or isinstance(error, RuntimeError):  # PyTorch's, of an operation on tensors
        return False
    code = innermost.tb_frame.f_code
    instruction = dis.opname[code.co_code[innermost.tb_lasti]]
    return owner_of(code.co_filename) is Owner.NOCLOBBER and not instruction.startswith(_CALLS_OR_RAISES)


def lost(way: str, failure: Exception) -> Lost:
    """Return what a report says of a failure. It holds only text: an exception's frames would keep tensors alive."""
    if isinstance(failure, UnsupportedTorch):
        return Lost(way, str(failure))
    if isinstance(failure, RecursionError):
        return Lost(way, "the program's stack was full")
    at = ""
    for frame, line in traceback.walk_tb(failure.__traceback__):
        at = f", {PurePath(frame.f_code.co_filename).name}:{line}"
    trace = "".join(traceback.format_exception(failure)) if os.environ.get("NOCLOBBER_DEBUG") else ""
    return Lost(way, f"{_words(failure)}{at}", internal=True, trace=trace)


def _words(failure: Exception) -> str:
    try:
        return "".join(f"{type(failure).__name__}: {failure}".splitlines()[:1])
    except Exception:
        return type(failure).__name__
