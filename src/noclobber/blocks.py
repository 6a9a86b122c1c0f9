"""What a program puts around its own code: `watch`, `preserve` and `install`."""

from __future__ import annotations

import atexit
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from noclobber import render, warn
from noclobber.answers import PrintedLedger, PrintedReport, Reporting
from noclobber.model.kept import Kept
from noclobber.model.ledger import Ledger
from noclobber.model.report import Lost, Report
from noclobber.processes.block import Blocks
from noclobber.sampling import Sampling
from noclobber.selection import Selection, selected
from noclobber.session import OnWrite, Session

P = ParamSpec("P")
R = TypeVar("R")


class _Block:
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

        Raises TypeError for a coroutine function or a generator function.
        """
        from noclobber.observe.torch_api.frames import passed_over

        _refuse_if_it_runs_later(function, type(self).__name__)

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


class watch(_Block, Reporting):
    """Watch a block, or a function: every save and write is recorded, and a changed save is a finding.

    If PyTorch raises an error about the save, `watch` raises a ClobberError that begins with PyTorch's message. If
    PyTorch stays silent, the program goes on, and a ClobberWarning comes at the end of the block. With
    `on_write="raise"` a write to bytes that backward still needs raises a ClobberError at its line, before the bytes
    change. A silent change that could not be stopped raises when backward reads it.

    The bytes that backward reads are compared with the saved bytes. This finds writes that PyTorch does not count or
    does not see: numpy, kernels, other processes. `contents=False` compares only versions: cheaper, and blind to these.

    `children=True` watches the processes that start in the block too, forked or as a new Python. What they found until
    the block ends is in its report and its warning.

    `ledger=True` counts the bytes that saves keep alive; `ledger()` says who kept them when they were the most.

    `hints=True` follows every operator too, which makes a step several times slower. The report then says where an
    in-place write would lower the peak of memory, where one lowers nothing, and where one is harmless.

    `every=100` is for a whole training: put the same object around each step, and it watches the first three steps and
    then one of each hundred, at a place that is drawn. Findings of all steps are in one report, which says how many
    steps were not watched. A step that begins while another one is watched, inside it or in another
    thread, is not watched itself. `every=1` watches all steps. Raises ValueError together with `children`, `ledger` or
    `hints`, and if it is no whole number above 0.

    A `watch` that is entered again goes on: its report is about all its blocks, and each finding is warned of once.

    A block ends in the thread in which it began, as PyTorch keeps hooks per thread. Elsewhere its end raises
    RuntimeError, and the block goes on; if the thread in which it began is over, it may end anywhere.
    """

    _session: Session
    _blocks: Blocks
    _sampling: Sampling | None
    _counts_bytes: bool
    _finds_late: bool
    """Whether the end of a block brings findings that the session does not have: of children, and hints."""
    _told: set[object]
    """The identities of the findings, and the failures, that were warned of."""

    @overload
    def __new__(
        cls,
        *,
        contents: bool = ...,
        on_write: OnWrite = ...,
        children: bool = ...,
        ledger: bool = ...,
        hints: bool = ...,
        every: int | None = ...,
    ) -> Self: ...

    @overload
    def __new__(cls, function: Callable[P, R], /) -> Callable[P, R]: ...  # type: ignore[misc]  # as `@noclobber.watch`

    def __new__(  # type: ignore[misc]
        cls,
        function: Callable[P, R] | None = None,
        /,
        *,
        contents: bool = True,
        on_write: OnWrite = "record",
        children: bool = False,
        ledger: bool = False,
        hints: bool = False,
        every: int | None = None,
    ) -> Any:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number above 0, not {every!r}")
        if every is not None and every > 1 and (children or ledger or hints):
            raise ValueError("every watches some steps only: leave out children, ledger and hints")
        if on_write not in ("record", "raise"):
            raise ValueError(f'on_write must be "record" or "raise", not {on_write!r}')
        self = super().__new__(cls)
        self._session = Session(on_write=on_write, contents=contents, notes=True, counting=ledger, hints=hints)
        self._blocks = Blocks(self._session, children=children)
        self._sampling = Sampling(every) if every is not None and every > 1 else None
        self._open = {}
        self._counts_bytes, self._finds_late = ledger, children or hints
        self._told = set()
        return self if function is None else self(_function(function, "watch"))

    def _begin(self) -> bool:
        sampling = self._sampling
        if sampling is not None and not sampling.begins():
            return False
        try:
            self._blocks.begin()
        except BaseException:
            if sampling is not None:
                sampling.ends()
            raise
        return True

    def _end(self, is_watched: bool, error: BaseException | None, function: object = None) -> None:
        """Warn of what no earlier end has told, and `error` does not tell."""
        if not is_watched:
            return
        session = self._session
        for _, findings in session.escaped(error) if error is not None else []:
            self._told.update(one.identity() for one in findings)
        self._blocks.end()
        if self._sampling is not None:
            self._sampling.ends()
        warn.of_failures(self._untold(session.failures))
        known = {one.identity() for one in session.findings}
        if self._finds_late or not known <= self._told:
            report = _counting(self._blocks)
            news = tuple(one for one in report.findings if one.identity() not in self._told)
            self._told |= known | {one.identity() for one in news}
            warn.of_findings(replace(report, findings=news, ledger=None), function, beside=error)

    def _untold(self, failures: tuple[Lost, ...]) -> list[Lost]:
        news = [one for one in failures if one not in self._told]
        self._told.update(news)
        return news

    def ledger(self) -> Ledger:
        """Return who kept the most bytes for backward. Raises ValueError without `ledger=True`."""
        if not self._counts_bytes:
            raise ValueError("this block counts no bytes: write `watch(ledger=True)`")
        return self.report.ledger or PrintedLedger()

    @property
    def report(self) -> PrintedReport:
        """Findings with the coverage: what was watched and what could not be. Comments on lines keep findings out."""
        report = _printed(_counting(self._blocks))
        return report if self._sampling is None else self._sampling.counted(report)


class preserve(_Block):
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
        return self if function is None else self(_function(function, "preserve"))

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


def _counting(blocks: Blocks) -> Report:
    """Return the report of blocks. What a comment on its line keeps out is suppressed."""
    return selected(blocks.report(), Selection())


def _printed(report: Report) -> PrintedReport:
    """Return a report, with its ledger if it has one, as a program gets it."""
    printed = PrintedLedger(**_fields(report.ledger)) if report.ledger is not None else None
    return PrintedReport(**{**_fields(report), "ledger": printed})


def _fields(record: Report | Ledger) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _function(given: Callable[P, R], kind: str) -> Callable[P, R]:
    """Return what a decorator without parentheses was put on. Raises TypeError if it is no function."""
    if not callable(given):
        raise TypeError(f"`noclobber.{kind}` takes a function, or options by name, not {given!r}")
    return given


def _refuse_if_it_runs_later(function: Callable[..., object], kind: str) -> None:
    """Raise TypeError for a function whose body runs only after the call has returned: no block would be around it."""
    is_coroutine = inspect.iscoroutinefunction(function)
    if is_coroutine or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = "coroutine" if is_coroutine else "generator"
        raise TypeError(
            f"`@noclobber.{kind}` cannot be put on a {what} function, whose body runs after the call: "
            f"write `with noclobber.{kind}():` inside it, around code without {'await' if is_coroutine else 'yield'}"
        )


class Installed(Reporting):
    """What `install` returns: `uninstall` undoes it, also as the end of a `with` block."""

    def __init__(self, *, children: bool = False) -> None:
        self._session = Session(watching=False, notes=True)
        self._blocks = Blocks(self._session, children=children)
        self._blocks.begin()
        if children:
            atexit.register(self.uninstall)
        self._excepthook = sys.excepthook
        self._hook = self._explain_uncaught
        sys.excepthook = self._hook

    def _explain_uncaught(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        self._session.escaped(error)
        self._excepthook(kind, error, error.__traceback__)

    @property
    def report(self) -> PrintedReport:
        """The in-place errors that a backward raised or that left the program. Comments on lines keep some out."""
        return _printed(_counting(self._blocks))

    def uninstall(self) -> None:
        """Leave PyTorch as it was found, and warn of what children found; a second call does nothing."""
        self._blocks.end()
        atexit.unregister(self.uninstall)
        if self._blocks.of_children:
            warn.of_findings(_counting(self._blocks))
        if sys.excepthook == self._hook:
            sys.excepthook = self._excepthook

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._session.escaped(error)
        self.uninstall()


def install(*, children: bool = False) -> Installed:
    """Watch writes only, for the whole program. An in-place error gets a note that explains it.

    The note knows the lines that wrote, but not the line that saved. `watch` and `noclobber run` know both.
    `children=True` does so in the processes that the program starts too, and warns of their errors at the end.
    """
    return Installed(children=children)
