"""A block of the program: a `with` statement, or a decorator, in any number of threads."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from noclobber.observe.torch_api.frames import passed_over

P = ParamSpec("P")
R = TypeVar("R")


class Block:
    """What a program puts around its code: a `with` block, or a decorator. Blocks of one may lie in each other."""

    _open: dict[threading.Thread, list[bool]]
    """The blocks that have begun and not ended, by their threads: whether each is watched, the innermost last. A thread
    changes only its own list, so no lock is needed."""

    def _begin(self) -> bool:
        """Begin a block. Return False if it is a step that is not watched."""
        raise NotImplementedError

    def _end(self, is_watched: bool, error: BaseException | None, function: object = None) -> None:
        """End a block, or a call of a function, which `error` leaves."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        is_watched = self._begin()
        self._open.setdefault(threading.current_thread(), []).append(is_watched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(self._ended(), error)

    def _ended(self) -> bool:
        """Forget the innermost block of this thread, or else of a thread that is over. Return True if it is watched.

        Raises RuntimeError if there is none. PyTorch has a stack of hooks for each thread, and no other thread can take
        noclobber's hooks off.
        """
        here, kind = threading.current_thread(), type(self).__name__
        known = list(self._open)
        thread = here if here in known else next((one for one in known if not one.is_alive()), None)
        if thread is None and known:
            raise RuntimeError(
                f"a block of `{kind}` began in thread {known[-1].name!r} and ends in thread {here.name!r}: "
                "end it in the thread in which it began"
            )
        if thread is None:
            raise RuntimeError(f"this block of `{kind}` has not begun, or it has ended")
        blocks = self._open[thread]
        is_watched = blocks.pop()
        if not blocks:
            del self._open[thread]
        return is_watched

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Put a block around every call of a function; a warning is about the function, wherever it is called from.

        Raises TypeError for what is no function, and for a coroutine function or a generator function.
        """
        _refuse_odd(function, type(self).__name__)

        @passed_over
        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            is_watched = self._begin()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._end(is_watched, error, function)
                raise
            self._end(is_watched, None, function)
            return result

        return inside


def _refuse_odd(function: object, kind: str) -> None:
    """Raise TypeError for what is no function, or whose body runs only after the call: no block would be around it."""
    if not callable(function):
        raise TypeError(f"`noclobber.{kind}` takes a function, or options by name, not {function!r}")
    is_coroutine = inspect.iscoroutinefunction(function)
    if is_coroutine or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = "coroutine" if is_coroutine else "generator"
        raise TypeError(
            f"`@noclobber.{kind}` cannot be put on a {what} function, whose body runs after the call: "
            f"write `with noclobber.{kind}():` inside it, around code without {'await' if is_coroutine else 'yield'}"
        )
