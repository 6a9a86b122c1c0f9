"""A session connects what is observed to rules and findings: for `watch`, `preserve`, `install` and `noclobber run`."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from noclobber import rules
from noclobber.model.forks import lock
from noclobber.model.reports.error import ClobberError, UnsupportedTorch
from noclobber.model.reports.finding import Finding, merged
from noclobber.model.reports.kept import Kept
from noclobber.model.reports.ledger import Ledger
from noclobber.model.reports.report import WITHOUT_BYTES, Coverage, Lost, Report
from noclobber.model.reports.shared_writes import of_one_write
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.hints import Hint, Opportunity
from noclobber.model.seen.silent import Event
from noclobber.model.tracebacks import shown_with, without_own_frames
from noclobber.session.imports import no_collection
from noclobber.session.sampling import Sampling

if TYPE_CHECKING:
    from noclobber.model.fake import FakeOrder
    from noclobber.observe.fake.run import FakeRun
    from noclobber.observe.memory.allocations import Allocations
    from noclobber.observe.memory.saved_bytes import SavedBytes

OnWrite = Literal["record", "raise"]
TOGETHER = 4
"""The backward calls in a row that a sampled run watches. The first of a row reads what was saved before, and two
optimizers that take turns make two calls in an iteration."""


class Journal(Protocol):
    """Is told at once what a session learns."""

    def found(self, finding: Finding, count: int) -> None:
        """Called for each finding, with how often it was seen so far."""

    def failed(self, lost: Lost) -> None:
        """Called when noclobber itself failed."""

    def checked(self, backwards: int, raised: int) -> None:
        """Called after a backward call, with how many were checked so far, and how many of them until an error."""


class Session:
    """What one run, one `watch` block or one `install` has found: the recorder tells it (`Listener` of
    observe/core/bus.py). Nothing heavy is imported before `start`."""

    def __init__(
        self,
        *,
        on_write: OnWrite = "record",
        watching: bool = True,
        contents: bool = False,
        keeping: bool = False,
        notes: bool = False,
        counting: bool = False,
        hints: bool = False,
        everywhere: bool = False,
        every: int = 0,
        fake: FakeOrder | None = None,
    ) -> None:
        self.on_write: OnWrite = on_write
        self.watching = watching
        self.contents = contents
        self.keeping = keeping
        self.everywhere = everywhere
        self.every = every
        """Of how many backward calls it watches some; 0 for all."""
        self._sampling = Sampling(every, TOGETHER) if every > TOGETHER else None
        self.fake = fake
        """What is asked of a run without values, if it is one."""
        self._faked: FakeRun | None = None
        self.journal: Journal | None = None
        self.account: SavedBytes | None = None
        """What counts the bytes of saves, once it has started."""
        self.allocations: Allocations | None = None
        """What follows every operator, for hints, once it has started."""
        self._counts_bytes = counting
        self._hints = hints
        self._kept: Counter[Kept] = Counter()
        self._copies: Counter[Kept] = Counter()
        self.notes = notes
        self._found: dict[tuple[object, ...], Finding] = {}
        self._coverage = Coverage(writes="nothing", saves=False)
        self._backwards = self._raised = 0
        self._armed = 0
        """How often it was started and not stopped."""
        self._lost: dict[Lost, None] = {}
        self._noted: tuple[weakref.ref[ClobberError] | None, list[Finding], str] = (None, [], "")
        """The last error that got a note, the findings in that note, and its text."""
        self._counting = lock()

    def handed_on(self) -> dict[str, Any]:
        """Return the options of the sessions of the processes that this one starts."""
        names = ("on_write", "watching", "contents", "every", "notes")
        return {name: getattr(self, name) for name in names}

    @property
    def started(self) -> bool:
        """Return True while it is armed."""
        return self._armed > 0

    def start(self) -> None:
        """Arm noclobber in this process and in this thread. A session that is started again goes on.

        Raises UnsupportedTorch where this PyTorch lacks what is needed.
        """
        # Only the first start imports. At each, the program's garbage would become old, and stay for longer.
        with no_collection(imports="noclobber.observe.arming.recorder" not in sys.modules):
            try:
                from noclobber.observe.arming import recorder
                from noclobber.observe.memory import allocations, saved_bytes
            except (ImportError, AttributeError) as failure:
                raise UnsupportedTorch(f"noclobber cannot watch this torch: {failure}") from failure
            if self._counts_bytes and self.account is None:
                self.account = saved_bytes.SavedBytes()
            if self.allocations is None and (self._hints or (self.fake is not None and self._counts_bytes)):
                played = self.fake is not None and self.fake.gpu.count > 0
                self.allocations = allocations.Allocations(self.fake.gpu.kind if self.fake and played else "")
            recorder.subscribe(self)
            with self._counting:
                self._armed += 1
            if self._sampling is not None:
                recorder.before_next_backward(self._sampled)
        if self.fake is not None and self._faked is None:
            from noclobber.observe.fake.run import FakeRun

            self._faked = FakeRun(self.fake, self.failed)
            self._faked.begin()
        elif self._faked is None and (module := sys.modules.get("noclobber.observe.fake.run")) is not None:
            self._faked = module.active()

    def stop(self) -> None:
        """Undo one `start`, in the thread in which it was; a no-op when not started."""
        if self._armed:
            from noclobber.observe.arming import recorder

            if self._faked is not None and self.fake is not None and self._armed == 1:
                self._faked.end()
            covered = recorder.unsubscribe(self)
            with self._counting:
                self._coverage = _after(self._coverage, covered)
                self._armed -= 1
            if self.allocations is not None and not self._armed:
                self.allocations.stop()

    def clobbered(self, clobbers: list[Clobber], error: RuntimeError | None) -> None:
        explained = {id(one): self._explained(one) for one in {id(one): one for one in clobbers}.values()}
        findings = [finding for one in clobbers if (finding := explained[id(one)]) is not None]
        for finding in findings:
            self._keep(finding)
        if isinstance(error, ClobberError):
            error.findings += self.advised(merged(findings))
        if error is not None and self.notes:
            self._annotate(error, findings)

    def noticed(self, event: Event) -> None:
        finding = self._explained(event)
        if finding is not None:
            self._keep(finding)

    def kept(self, one: Kept) -> None:
        lines = replace(one, bytes=0, times=0)
        with self._counting:
            self._kept[lines] += one.bytes
            self._copies[lines] += one.times

    def refused(self, error: RuntimeError, refusal: Refusal) -> None:
        if self.notes:
            finding = self._explained(refusal)
            self._annotate(error, [finding] if finding else [])

    def failed(self, lost: Lost) -> None:
        if lost not in self._lost:
            self._lost[lost] = None
            if self.journal is not None:
                self.journal.failed(lost)

    def _failed(self, what: str, failure: Exception) -> None:
        from noclobber.observe.core.boundary import lost

        self.failed(lost(what, failure))

    def checked(self, *, raised: bool) -> None:
        with self._counting:
            if raised:
                self._raised += 1
            else:
                self._backwards += 1
            if self.journal is not None:
                self.journal.checked(self._backwards, self._raised)
            if self._faked is not None:
                self._faked.checked()
        if self._faked is not None and self._armed and self._faked.steps.are_enough(self._backwards + self._raised):
            from noclobber.observe.arming import recorder

            recorder.before_next_backward(self._faked.steps.stop)

    def _sampled(self) -> None:
        """Choose what is watched from this backward call to the next: all, or the writes alone."""
        from noclobber.observe.arming import recorder

        if self._sampling is None or not self._armed:
            return
        recorder.before_next_backward(self._sampled)  # first: other threads call backward meanwhile
        with self._counting:
            self._sampling.ends()
            due = self._sampling.begins()
        if due != self.watching:
            self.watching = due
            recorder.settle()

    @property
    def failures(self) -> tuple[Lost, ...]:
        """Where noclobber itself failed."""
        return tuple(lost for lost in list(self._lost) if lost.internal)

    def escaped(self, error: BaseException) -> list[tuple[BaseException, tuple[Finding, ...]]]:
        """Explain an exception that left the program, or the block, and those that it came from.

        Returns those of them that are about writing in place, with what was found. Nothing happens while the session
        has not started.
        """
        if not self._armed:
            return []
        from noclobber.observe.arming import recorder

        if self._faked is not None:
            self._faked.explain(error)
        explained: list[tuple[BaseException, tuple[Finding, ...]]] = []
        for one in shown_with(error):
            event = recorder.event_of(one)
            finding = self._explained(event) if event is not None else None
            if finding is not None and not isinstance(event, Clobber):
                self._keep(finding)
                if self.notes:
                    self._annotate(one, [finding])
            if isinstance(one, ClobberError) and one.findings:
                explained.append((one, merged(one.findings)))
            elif finding is not None:
                explained.append((one, self.advised([finding])))
        without_own_frames(error)
        return explained

    def _explained(self, event: Event) -> Finding | None:
        try:
            return rules.explain(event)
        except Exception as failure:
            self._failed("some findings", failure)
            return None

    def _keep(self, finding: Finding) -> None:
        identity = finding.identity()
        with self._counting:
            known = self._found.get(identity)
            self._found[identity] = whole = finding if known is None else known.with_facts_of(finding)
            if self.journal is not None:
                self.journal.found(finding, whole.count)

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
        text = render.render(Report(self.advised(merged(findings))), "full")
        if text not in known:
            error.add_note(text)
        if isinstance(error, ClobberError):
            self._noted = (weakref.ref(error), findings, text)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, equal findings once with their count, in the order they were first seen."""
        with self._counting:
            return tuple(self._found.values())

    @property
    def keepings(self) -> tuple[Kept, ...]:
        """What was kept so far, the most first."""
        return tuple(replace(one, bytes=size, times=self._copies[one]) for one, size in self._kept.most_common())

    def advised(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return findings as a reader gets them: they show only changes that are sound by construction."""
        if not findings:
            return ()
        from noclobber.mend import shown

        try:
            return of_one_write(shown.advised(findings))
        except Exception as failure:
            self._failed("changes to the source", failure)
            return tuple(findings)

    def ledger(self) -> Ledger | None:
        """Return who kept the most bytes for backward; None if nobody asked for it, or nothing has started."""
        if self.account is None:
            return None
        from noclobber.rules.shared.wording import node_in_words

        ledger = self.account.ledger()
        entries = (replace(one, op=node_in_words(one.node) if one.node else "") for one in ledger.entries)
        if self._faked is None:
            return replace(ledger, entries=tuple(entries))
        in_place = tuple(one for one, found in self._hinted() if isinstance(one, Opportunity) and found is not None)
        falls = sum(one.bytes for one in in_place)
        return replace(ledger, entries=tuple(entries), peaks=self._faked.peaks(), in_place=falls, lines=len(in_place))

    def hints(self) -> tuple[Finding, ...]:
        """Return what could be written in place, and what need not be, the most bytes first; empty if nobody asked."""
        found = self._hinted() if self._hints else []
        counted = (replace(one, count=hint.times) for hint, one in found if one is not None)
        return tuple(sorted(counted, key=lambda one: one.code))

    def _hinted(self) -> list[tuple[Hint, Finding | None]]:
        """Return what was seen for hints, each with its finding; None for what is not worth a change."""
        try:
            hints = self.allocations.hints() if self.allocations is not None else []
        except Exception as failure:
            self._failed("hints", failure)
            return []
        return [(hint, self._explained(hint)) for hint in hints]

    def report(self, program: dict[str, Any] | None = None) -> Report:
        """Return everything a renderer needs. Findings show only changes that are sound by construction."""
        findings, ledger = self.advised(self.findings), None
        try:
            ledger = self.ledger()
        except Exception as failure:
            self._failed("the ledger", failure)
        return Report((*findings, *self.hints()), self.coverage(), program or {}, ledger=ledger)

    def proposed(self) -> Report:
        """Return the report as the rules make it, with words alone, for `fix` to try changes."""
        from noclobber.mend.words import worded

        said = (replace(one, suggestions=worded(one)) for one in self.findings)
        return Report((*said, *self.hints()), self.coverage())

    def coverage(self) -> Coverage:
        """Return what is watched, or was until the end."""
        coverage = self._coverage
        if self._armed:
            from noclobber.observe.arming import recorder

            coverage = _after(coverage, recorder.coverage(self))
        if self._sampling is not None and (missed := self._sampling.steps - self._backwards - self._raised) > 0:
            of = f"{missed:,} of {self._sampling.steps:,}"
            some = f"{of} backward calls (`--every {self.every}` watches the others)"
            coverage = replace(coverage, saves=True, contents=self.contents, unseen=(*coverage.unseen, some))
        lost = tuple(dict.fromkeys((*coverage.lost, *self._lost)))
        if self._faked is not None:
            from noclobber.render.text import place_of_line

            unseen = tuple(one for one in coverage.unseen if not one.startswith(WITHOUT_BYTES))
            notes = (*coverage.notes, *self._faked.notes(place_of_line))
            coverage = replace(coverage, contents=False, fake=not self._faked.elsewhere, unseen=unseen, notes=notes)
        return replace(coverage, lost=lost, backwards=self._backwards, raised=self._raised)

    def begin_again(self) -> None:
        """Drop what was found: in a forked child, which is a process of its own."""
        for known in (self._found, self._lost, self._kept, self._copies):
            known.clear()
        self._backwards = self._raised = 0
        self._faked = None  # a child that loads data has real tensors
        if self._armed:
            from noclobber.observe.arming import recorder

            recorder.begin_again()


def _after(before: Coverage, now: Coverage) -> Coverage:
    """Return what is covered now, with what was not seen before."""
    unseen = {one.partition(" (")[0]: one for one in (*before.unseen, *now.unseen)}
    return replace(now, unseen=tuple(unseen.values()))
