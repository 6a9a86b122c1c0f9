"""A session connects what is observed to rules and findings: for `watch`, `preserve`, `install` and `noclobber run`."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, TracebackType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from noclobber import rules
from noclobber.model.clobber import Clobber
from noclobber.model.error import ClobberError, ClobberWarning, UnsupportedTorch
from noclobber.model.events import Refusal
from noclobber.model.finding import Finding
from noclobber.model.forks import unlocked_in_child
from noclobber.model.kept import Kept
from noclobber.model.report import Coverage, Lost, Report
from noclobber.model.shared_writes import of_one_write
from noclobber.model.silent import Event

P = ParamSpec("P")
R = TypeVar("R")
OnWrite = Literal["record", "raise"]


class Journal(Protocol):
    """Is told at once what a session learns."""

    def found(self, finding: Finding, count: int) -> None:
        """Called for each finding, with how often it was seen so far."""

    def failed(self, lost: Lost) -> None:
        """Called when noclobber itself failed."""


class Session:
    """What one run, one `watch` block or one `install` has found. Nothing heavy is imported before `start`."""

    def __init__(
        self,
        *,
        on_write: OnWrite = "record",
        watching: bool = True,
        contents: bool = False,
        keeping: bool = False,
        notes: bool = False,
    ) -> None:
        self.on_write: OnWrite = on_write
        self.watching = watching
        self.contents = contents
        self.keeping = keeping
        self.journal: Journal | None = None
        self._kept: Counter[Kept] = Counter()
        self._copies: Counter[Kept] = Counter()
        self._notes = notes
        self._found: dict[tuple[object, ...], Finding] = {}
        self._counts: dict[tuple[object, ...], int] = {}
        self._coverage = Coverage(writes="nothing", saves=False)
        self._started = False
        self._lost: dict[Lost, None] = {}
        self._noted: tuple[weakref.ref[ClobberError] | None, list[Finding], str] = (None, [], "")
        """The last error that got a note, the findings in that note, and its text."""
        unlocked_in_child(self)

    def unlock(self) -> None:
        """Make a new lock, which no thread holds."""
        self._counting = threading.RLock()  # a garbage collection that runs meanwhile may come here too

    def start(self) -> None:
        """Arm noclobber in this process. Raises UnsupportedTorch where this PyTorch lacks what is needed."""
        try:
            from noclobber.observe import subscription
        except (ImportError, AttributeError) as failure:
            raise UnsupportedTorch(f"noclobber cannot watch this torch: {failure}") from failure
        subscription.subscribe(self)
        self._started = True

    def stop(self) -> None:
        """Disarm; a no-op when not started."""
        if self._started:
            from noclobber.observe import subscription

            self._started = False
            self._coverage = subscription.unsubscribe(self)

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        """The recorder saw saves that were overwritten."""
        findings = [finding for clobber in clobbers if (finding := self._explained(clobber)) is not None]
        for finding in findings:
            self._keep(finding)
        if isinstance(error, ClobberError):
            error.findings += self.advised(findings)
        if error is not None and self._notes:
            self._annotate(error, findings)

    def noticed(self, event: Event) -> None:
        """The recorder saw something silent go wrong."""
        finding = self._explained(event)
        if finding is not None:
            self._keep(finding)

    def kept(self, one: Kept) -> None:
        """The recorder copied bytes of a save before a write."""
        lines = replace(one, bytes=0, times=0)
        with self._counting:
            self._kept[lines] += one.bytes
            self._copies[lines] += one.times

    def refused(self, error: RuntimeError, refusal: Refusal) -> None:
        """An operator raised an error about writing in place; the program may still catch it."""
        if self._notes:
            finding = self._explained(refusal)
            self._annotate(error, [finding] if finding else [])

    def failed(self, lost: Lost) -> None:
        """Noclobber itself failed, and the program goes on: the report's coverage will say so."""
        if lost not in self._lost:
            self._lost[lost] = None
            if self.journal is not None:
                self.journal.failed(lost)

    @property
    def failures(self) -> tuple[Lost, ...]:
        """Where noclobber itself failed."""
        return tuple(lost for lost in list(self._lost) if lost.internal)

    def escaped(self, error: BaseException) -> None:
        """An exception left the program, or the block: explain it if it is about writing in place."""
        from noclobber.observe import subscription

        event = subscription.event_of(error) if self._started else None
        finding = self._explained(event) if event is not None else None
        if finding is not None and not isinstance(event, Clobber):
            self._keep(finding)
            if self._notes:
                self._annotate(error, [finding])
        without_own_frames(error)

    def _explained(self, event: Event) -> Finding | None:
        try:
            return rules.explain(event)
        except Exception as failure:
            from noclobber.observe.core.boundary import lost

            self.failed(lost("some findings", failure))
            return None

    def _keep(self, finding: Finding) -> None:
        identity = finding.identity()
        with self._counting:
            known = self._found.setdefault(identity, finding)
            if known is not finding:
                self._found[identity] = known.with_field_of(finding)
            self._counts[identity] = self._counts.get(identity, 0) + 1
            if self.journal is not None:
                self.journal.found(finding, self._counts[identity])

    def _annotate(self, error: BaseException, findings: list[Finding]) -> None:
        """Add the report of an error to it as a note. It replaces the earlier note, which knew less."""
        from noclobber import render

        if not findings:
            return
        known: list[str] = getattr(error, "__notes__", [])
        if isinstance(error, ClobberError):
            about, so_far, before = self._noted
            if about is not None and about() is error:
                findings = [*so_far, *findings]
                known[:] = [note for note in known if note != before]
        text = render.render(Report(self.advised(_merged(findings))), "full")
        if text not in known:
            error.add_note(text)
        if isinstance(error, ClobberError):
            self._noted = (weakref.ref(error), findings, text)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, equal findings once with their count, in the order they were first seen."""
        with self._counting:
            return tuple(finding.repeated(self._counts[key]) for key, finding in self._found.items())

    @property
    def keepings(self) -> tuple[Kept, ...]:
        """What was kept so far, the most first."""
        return tuple(replace(one, bytes=size, times=self._copies[one]) for one, size in self._kept.most_common())

    def advised(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return findings as a reader gets them: they show only changes that are sound by construction."""
        from noclobber import rewrites

        try:
            return of_one_write(rewrites.advised(findings))
        except Exception as failure:
            from noclobber.observe.core.boundary import lost

            self.failed(lost("changes to the source", failure))
            return tuple(findings)

    def report(self, program: dict[str, Any] | None = None) -> Report:
        """Return everything a renderer needs. Findings show only changes that are sound by construction."""
        findings = self.advised(self.findings)
        return replace(self.proposed(program), findings=findings)

    def proposed(self, program: dict[str, Any] | None = None) -> Report:
        """Return the report with all that the rules propose, for `fix` to try."""
        return Report(self.findings, self.coverage(), program or {})

    def coverage(self) -> Coverage:
        """Return what is watched, or was until the end."""
        coverage = self._coverage
        if self._started:
            from noclobber.observe import subscription

            coverage = subscription.coverage()
        return replace(coverage, lost=tuple(dict.fromkeys((*coverage.lost, *self._lost))))

    def begin_again(self) -> None:
        """Drop what was found: in a forked child, which is a process of its own."""
        for known in (self._found, self._counts, self._lost, self._kept, self._copies):
            known.clear()
        if self._started:
            from noclobber.observe import subscription

            subscription.begin_again()


def _merged(findings: list[Finding]) -> tuple[Finding, ...]:
    """Equal findings once, with their count."""
    first: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        known = first.setdefault(finding.identity(), finding)
        first[finding.identity()] = known.with_field_of(finding)
    counts = Counter(finding.identity() for finding in findings)
    return tuple(finding.repeated(counts[identity]) for identity, finding in first.items())


def without_own_frames(error: BaseException) -> None:
    """Cut noclobber's frames out of an exception's traceback, so that it reads as it would without noclobber."""
    from noclobber.model.source import Owner, owner_of

    kept: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        if owner_of(traceback.tb_frame.f_code.co_filename) is not Owner.NOCLOBBER:
            kept.append(traceback)
        traceback = traceback.tb_next
    rebuilt: TracebackType | None = None
    for one in reversed(kept):
        rebuilt = TracebackType(rebuilt, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = rebuilt


class watch:
    """Watch a block or a function: every save and write is recorded, and a changed save is a finding.

    If PyTorch raises an error about the save, `watch` raises a ClobberError that begins with PyTorch's message. If
    PyTorch stays silent, the program goes on, and a ClobberWarning comes at the end of the block. With
    `on_write="raise"` a write to bytes that backward still needs raises a ClobberError at its line, before the bytes
    change. A silent change that could not be stopped raises when backward reads it.

    `contents=True` compares the bytes that backward reads with the saved bytes. This finds writes that PyTorch does not
    count or does not see: numpy, kernels, other processes.
    """

    def __init__(self, *, contents: bool = False, on_write: OnWrite = "record") -> None:
        if on_write not in ("record", "raise"):
            raise ValueError(f'on_write must be "record" or "raise", not {on_write!r}')
        self._on_write: OnWrite = on_write
        self._contents = contents
        self._sessions: list[Session] = []
        self._last = Session()

    def __enter__(self) -> watch:
        session = Session(on_write=self._on_write, contents=self._contents, notes=True)
        session.start()
        self._sessions.append(session)
        self._last = session
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._leave(error)
        if error is None:
            _warn_about(session)

    def _leave(self, error: BaseException | None) -> Session:
        session = self._last = self._sessions.pop()
        if error is not None:
            session.escaped(error)
        session.stop()
        return session

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Watch every call of a function; a warning is about the function, wherever it is called from."""
        from noclobber.observe.torch_api.frames import passed_over

        @passed_over
        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            self.__enter__()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._leave(error)
                raise
            _warn_about(self._leave(None), function)
            return result

        return watched

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What this block, or the last one ended, found."""
        return self._last.report().findings

    @property
    def report(self) -> Report:
        """Findings with the coverage: what was watched and what could not be."""
        return self._last.report()


class preserve:
    """Keep what backward needs in a block or a function: gradients are right in spite of in-place writes.

    Just before a write changes bytes that a save still needs, through whatever view or alias, these bytes are copied;
    backward then gets what was saved, even if it runs after the block. Checkpointed regions do so too: while a region
    runs again, the tensors that it reads from outside hold their values from forward. noclobber cannot keep bytes from
    a change that torch never sees (numpy, another process): then backward raises a ClobberError. Writes of hooks and
    custom backwards into gradients stay, because gradients are not saves. `report()` says line by line what was kept.
    """

    def __init__(self) -> None:
        self._sessions: list[Session] = []
        self._last = Session()

    def __enter__(self) -> preserve:
        session = Session(contents=True, keeping=True, notes=True)
        session.start()
        self._sessions.append(session)
        self._last = session
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._last = self._sessions.pop()
        if error is not None:
            session.escaped(error)
        session.stop()
        _warn_of_failures(session)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Keep what backward needs in every call of a function."""
        from noclobber.observe.torch_api.frames import passed_over

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

    def report(self) -> str:
        """The same in words, a line for each pair of lines."""
        from noclobber import render

        return render.kept(self.kept)


def _warn_about(session: Session, function: object = None) -> None:
    """Warn of what was found, at the line that leaves the block, or where a watched function is."""
    from noclobber import render

    _warn_of_failures(session)
    report = session.report()
    if not report.findings:
        return
    text = render.render(report, "full")
    if isinstance(function, FunctionType):
        code, known = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, ClobberWarning, code.co_filename, code.co_firstlineno, registry=known)
    else:
        warnings.warn(text, ClobberWarning, stacklevel=3)


def _warn_of_failures(session: Session) -> None:
    for lost in session.failures:
        what = f"noclobber: internal error: {lost.way}: {lost.why}"
        warnings.warn(f"{what}\n{lost.trace}" if lost.trace else what, ClobberWarning, stacklevel=4)


class Installed:
    """What `install` returns: `uninstall` undoes it, also as the end of a `with` block."""

    def __init__(self) -> None:
        self._session = Session(watching=False, notes=True)
        self._session.start()
        self._excepthook = sys.excepthook
        self._hook = self._explain_uncaught
        sys.excepthook = self._hook

    def _explain_uncaught(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        self._session.escaped(error)
        self._excepthook(kind, error, error.__traceback__)

    def uninstall(self) -> None:
        """Leave PyTorch as it was found; a second call does nothing."""
        self._session.stop()
        if sys.excepthook == self._hook:
            sys.excepthook = self._excepthook

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()


def install() -> Installed:
    """Watch writes only, for the whole program. An in-place error gets a note that explains it.

    The note knows the lines that wrote, but not the line that saved. `watch` and `noclobber run` know both.
    """
    return Installed()
