"""What a program puts around its own code: `watch`, `preserve` and `install`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import random
import sys
import threading
import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from types import FrameType, FunctionType, TracebackType
from typing import Generic, ParamSpec, TypeVar

from noclobber.model.error import ClobberWarning
from noclobber.model.finding import Finding
from noclobber.model.forks import unlocked_in_child
from noclobber.model.kept import Kept
from noclobber.model.ledger import Ledger
from noclobber.model.report import Report
from noclobber.model.source import PASSED_OVER, Owner, cell_of, owner_of
from noclobber.processes.block import Block
from noclobber.selection import Selection, is_commented, selected
from noclobber.session import OnWrite, Session

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")


class watch:
    """Watch a block or a function: every save and write is recorded, and a changed save is a finding.

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
    steps were not watched. `every=1` watches all steps. A step that begins while another one is watched, inside it or
    in another thread, is not watched itself. Raises ValueError together with `children`, `ledger` or `hints`, and if it
    is no whole number above 0. Without `every`, each block has a report of its own.

    A block ends in the thread in which it began, as PyTorch keeps hooks per thread. Elsewhere its end raises
    RuntimeError, and the block goes on; if the thread in which it began is over, it may end anywhere.
    """

    def __init__(
        self,
        *,
        contents: bool = True,
        on_write: OnWrite = "record",
        children: bool = False,
        ledger: bool = False,
        hints: bool = False,
        every: int | None = None,
    ) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number above 0, not {every!r}")
        if every is not None and every > 1 and (children or ledger or hints):
            raise ValueError("every watches some steps only: leave out children, ledger and hints")
        if on_write not in ("record", "raise"):
            raise ValueError(f'on_write must be "record" or "raise", not {on_write!r}')
        self._on_write: OnWrite = on_write
        self._contents = contents
        self._children = children
        self._ledger, self._hints = ledger, hints
        self._sampling = Sampling(every, self._new_session()) if every is not None else None
        self._open = _Open[Block | None]("watch")
        self._last = Block(Session())

    def _new_session(self) -> Session:
        return Session(
            on_write=self._on_write,
            contents=self._contents,
            notes=True,
            counting=self._ledger,
            hints=self._hints,
        )

    def __enter__(self) -> watch:
        self._open.begun(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        news, told = self._end(self._open.ended(), error)
        if news is not None:
            _warn_about(news, told, beside=error)

    def _begin(self) -> Block | None:
        """Begin a block. Return None if it is a step that is not watched."""
        sampling = self._sampling
        if sampling is None:
            session = self._new_session()
        elif sampling.begins():
            session = sampling.session
        else:
            return None
        try:
            session.start()
        except BaseException:
            if sampling is not None:
                sampling.ends()
            raise
        self._last = block = Block(session, children=self._children)
        return block

    def _end(self, block: Block | None, error: BaseException | None) -> tuple[Block | None, set[object]]:
        """End a block. Return it if there is something to warn of that no earlier step has found.

        With it come the identities of what `error`, which leaves the block, tells itself.
        """
        if block is None:
            return None, set()
        self._last = block
        explained = block.session.escaped(error) if error is not None else []
        block.end()
        told: set[object] = {one.identity() for _, findings in explained for one in findings}
        return block if self._sampling is None or self._sampling.ends() else None, told

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Watch every call of a function; a warning is about the function, wherever it is called from.

        Raises TypeError for a coroutine function or a generator function.
        """
        from noclobber.observe.torch_api.frames import passed_over

        _refuse_if_it_runs_later(function, "watch")

        @passed_over
        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            block = self._begin()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                news, told = self._end(block, error)
                if news is not None:
                    _warn_about(news, told, function, beside=error)
                raise
            news, told = self._end(block, None)
            if news is not None:
                _warn_about(news, told, function)
            return result

        return watched

    def __repr__(self) -> str:
        from noclobber.render.judged import calls_in_words

        report = self.report
        found, calls = len(report.findings), calls_in_words(report.coverage.backwards)
        return f"<noclobber.watch: {found} finding{'s' * (found != 1)} in {calls}>"

    def _repr_html_(self) -> str:
        """Show the report, as the value of a notebook's cell."""
        from noclobber import render

        return render.part(self.report)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What this block, or the last one ended, found; with `every`, what all steps found."""
        return self.report.findings

    def ledger(self) -> Ledger:
        """Return who kept the most bytes for backward in this block, or the last one ended.

        Raises ValueError without `ledger=True`.
        """
        ledger = self._last.session.ledger()
        if ledger is None:
            raise ValueError("this block counts no bytes: write `watch(ledger=True)`")
        return ledger

    @property
    def report(self) -> Report:
        """Findings with the coverage: what was watched and what could not be. Comments on lines keep findings out."""
        report = _counting(self._last)
        return report if self._sampling is None else self._sampling.counted(report)


class _Open(Generic[B]):
    """The blocks that have begun and not ended, by the thread in which they began."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._blocks: dict[threading.Thread, list[B]] = {}
        """The innermost block last. A thread changes only its own list, so that no lock is needed."""

    def begun(self, block: B) -> None:
        """Note a block that begins in this thread."""
        self._blocks.setdefault(threading.current_thread(), []).append(block)

    def ended(self) -> B:
        """Return the innermost block of this thread, or else of a thread that is over, and forget it.

        Raises RuntimeError if there is none. PyTorch has a stack of hooks for each thread, and no other thread can take
        noclobber's hooks off.
        """
        here = threading.current_thread()
        known = list(self._blocks)
        thread = here if here in known else next((one for one in known if not one.is_alive()), None)
        if thread is None and known:
            raise RuntimeError(
                f"a block of `{self._kind}` began in thread {known[-1].name!r} and ends in thread {here.name!r}: "
                "end it in the thread in which it began"
            )
        if thread is None:
            raise RuntimeError(f"this block of `{self._kind}` has not begun, or it has ended")
        blocks = self._blocks[thread]
        block = blocks.pop()
        if not blocks:
            del self._blocks[thread]
        return block


class Sampling:
    """Which steps of a training are watched: the first ones, and then one of each block of `every`.

    Its place in the block is drawn. With a fixed one, what happens in every second step could be missed for good.
    """

    FIRST = 3

    def __init__(self, every: int, session: Session) -> None:
        self.session = session
        """Has what all steps found."""
        self._every = every
        self._drawn = random.Random(0)  # the program's own generator stays as it is
        self._due = 0
        self._under_way = False
        self._steps = self._watched = self._told = 0
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Make a new lock, which no thread holds."""
        self._counting = threading.RLock()  # a signal or a garbage collection that comes meanwhile may begin a step

    def begins(self) -> bool:
        """Count a step. Return True if it is to be watched: then `ends` must be called."""
        with self._counting:
            self._steps += 1
            if (self._steps - self.FIRST - 1) % self._every == 0:
                self._due = self._steps + self._drawn.randrange(self._every)
            due = (self._steps <= self.FIRST or self._steps == self._due) and not self._under_way
            self._under_way |= due
            self._watched += due
            return due

    def ends(self) -> bool:
        """End the watched step. Return True if there are findings that were not there when an earlier one ended."""
        found = sum(not is_commented(one) for one in self.session.findings) + len(self.session.failures)
        told, self._told = self._told, found
        self._under_way = False
        return found > told

    def counted(self, report: Report) -> Report:
        """Return a report which says how many steps were not watched."""
        missed = self._steps - self._watched
        if not missed:
            return report
        unseen = f"{missed:,} of {self._steps:,} steps (`every={self._every}` watches the others)"
        return replace(report, coverage=replace(report.coverage, unseen=(*report.coverage.unseen, unseen)))


class preserve:
    """Keep what backward needs in a block or a function: gradients are right in spite of in-place writes.

    Just before a write changes bytes that a save still needs, through whatever view or alias, these bytes are copied;
    backward then gets what was saved, even if it runs after the block. Checkpointed regions do so too: while a region
    runs again, the tensors that it reads from outside hold their values from forward. noclobber cannot keep bytes from
    a change that torch never sees (numpy, another process): then backward raises a ClobberError. Writes of hooks and
    custom backwards into gradients stay, because gradients are not saves. `report` says line by line what was kept.

    A block ends in the thread in which it began; elsewhere its end raises RuntimeError, as for `watch`.
    """

    def __init__(self) -> None:
        self._open = _Open[Session]("preserve")
        self._last = Session()

    def __enter__(self) -> preserve:
        session = Session(contents=True, keeping=True, notes=True)
        session.start()
        self._open.begun(session)
        self._last = session
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._last = self._open.ended()
        if error is not None:
            session.escaped(error)
        session.stop()
        _warn_of_failures(session)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Keep what backward needs in every call of a function.

        Raises TypeError for a coroutine function or a generator function.
        """
        from noclobber.observe.torch_api.frames import passed_over

        _refuse_if_it_runs_later(function, "preserve")

        @passed_over
        @functools.wraps(function)
        def kept(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return kept

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What this block, or the last one ended, copied: a record for each pair of lines, the most bytes first."""
        return self._last.keepings

    @property
    def report(self) -> str:
        """The same in words, a line for each pair of lines."""
        from noclobber import render

        return render.kept(self.kept)


def _counting(block: Block) -> Report:
    """Return the report of a block. What a comment on its line keeps out is suppressed."""
    return selected(block.report(), Selection())


def _refuse_if_it_runs_later(function: Callable[..., object], kind: str) -> None:
    """Raise TypeError for a function whose body runs only after the call has returned: no block would be around it."""
    is_coroutine = inspect.iscoroutinefunction(function)
    if is_coroutine or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = "coroutine" if is_coroutine else "generator"
        raise TypeError(
            f"`@noclobber.{kind}()` cannot be put on a {what} function, whose body runs after the call: "
            f"write `with noclobber.{kind}():` inside it, around code without {'await' if is_coroutine else 'yield'}"
        )


def _warn_about(
    block: Block,
    told: Collection[object] = (),
    function: object = None,
    *,
    beside: BaseException | None = None,
) -> None:
    """Warn of what was found, at the line that leaves the block, or where a watched function is.

    What is `told` already is left out. An exception `beside` the warning is raised even if warnings are errors.
    """
    from noclobber import render

    _warn_of_failures(block.session)
    report = _counting(block)
    report = replace(report, findings=tuple(one for one in report.findings if one.identity() not in told))
    if not report.findings:
        return
    with contextlib.suppress(ClobberWarning) if beside is not None else contextlib.nullcontext():
        _warn_at(render.render(report, "full"), function)


def _warn_at(text: str, function: object) -> None:
    if isinstance(function, FunctionType):
        code, known = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
        path = cell_of(code.co_filename) or code.co_filename
        warnings.warn_explicit(text, ClobberWarning, path, code.co_firstlineno, registry=known)
    else:
        _warn(text)


def _warn_of_failures(session: Session) -> None:
    for lost in session.failures:
        what = f"noclobber: internal error: {lost.way}: {lost.why}"
        _warn(f"{what}\n{lost.trace}" if lost.trace else what)


def _warn(text: str) -> None:
    """Warn at the program's innermost line; in a notebook, by the name of the cell and not of the file behind it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.NOCLOBBER:
        frame = frame.f_back
    if frame is None or not (cell := cell_of(frame.f_code.co_filename)):
        warnings.warn(text, ClobberWarning, stacklevel=_level_of_program())
        return
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, ClobberWarning, cell, frame.f_lineno, names.get("__name__"), registry)


def _level_of_program() -> int:
    """Return the `stacklevel` of the program's innermost frame, for the function that calls this.

    A callback is called by a library, and a warning is not about that library, whose warnings may be filtered out.
    """
    frame: FrameType | None = sys._getframe(1)
    level = outside = 0
    while frame is not None:
        level += frame.f_code.co_filename != PASSED_OVER  # which warnings do not count
        owner = owner_of(frame.f_code.co_filename)
        if owner is Owner.USER:
            return level
        outside = outside or level * (owner is not Owner.NOCLOBBER)
        frame = frame.f_back
    return outside or 1


class Installed:
    """What `install` returns: `uninstall` undoes it, also as the end of a `with` block."""

    def __init__(self, *, children: bool = False) -> None:
        self._session = Session(watching=False, notes=True)
        self._session.start()
        self._block = Block(self._session, children=children)
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

    def uninstall(self) -> None:
        """Leave PyTorch as it was found, and warn of what children found; a second call does nothing."""
        self._block.end()
        atexit.unregister(self.uninstall)
        if self._block.of_children:
            _warn_about(self._block)
        if sys.excepthook == self._hook:
            sys.excepthook = self._excepthook

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()


def install(*, children: bool = False) -> Installed:
    """Watch writes only, for the whole program. An in-place error gets a note that explains it.

    The note knows the lines that wrote, but not the line that saved. `watch` and `noclobber run` know both.
    `children=True` does so in the processes that the program starts too, and warns of their errors at the end.
    """
    return Installed(children=children)
