"""One run of a program for evidence, in its own process.

Its folder holds `order.json`, and gets `result.json` and the evidence when the run is over.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from noclobber import program
from noclobber.fix.proof import generators
from noclobber.fix.proof.job import DYNAMO, FORWARD, Ended, Order, Result
from noclobber.fix.proof.source_overlay import Served
from noclobber.imports import after_import
from noclobber.model.report import Report, ReportError
from noclobber.processes.member import Member
from noclobber.processes.member import Order as Run
from noclobber.processes.merging import report_of
from noclobber.render.text import place
from noclobber.selection import selected
from noclobber.session import Session

if TYPE_CHECKING:
    from noclobber.observe.gradient_trace.evidence import Evidence
    from noclobber.observe.gradient_trace.forward_mode import ForwardMode
    from noclobber.observe.measured_peak import MeasuredPeak

_READS_NO_GRADIENT = "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"
"""PyTorch's warning (TensorBody.h, torch 2.13)."""


class _At:
    """Stands among the finders of modules, finds none, and calls back each time when a certain one is looked for."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name:
            self._act()


class TrialProcess:
    """The run, from before the program's first line to where it ends or enough is known."""

    def __init__(self, folder: str, order: Order, ask_for_dynamo: Callable[[], object] | None = None) -> None:
        self._folder = folder
        self._order = order
        self._ask_for_dynamo = ask_for_dynamo
        self._evidence: Evidence | None = None
        self._session: Session | None = None
        self._found_at: int | None = None
        self._process = os.getpid()
        self._lost = False
        self._tangents: ForwardMode | None = None
        self._member: Member | None = None
        self._peak: MeasuredPeak | None = None

    def carry_out(self, words: list[str]) -> None:
        """Run the program and write what came of it; never returns."""
        served = Served(self._order.served)
        try:
            loaded = program.load(words, served.read)
        except program.NotAProgram as reason:
            self._finish(Ended.REFUSED, error=str(reason))
        served.arm()
        self._listen_to_warnings()
        generators.begin()
        after_import("torch", self._torch_is_there)
        if self._ask_for_dynamo is not None and DYNAMO not in sys.modules:  # imported there while it is imported here
            sys.meta_path.insert(0, _At(DYNAMO, self._ask_for_dynamo))
        try:
            error = program.execute(loaded)
        except program.NotAProgram as reason:
            self._finish(Ended.REFUSED, error=str(reason))
        if os.getpid() != self._process:
            sys.exit(program.show(error))  # a child that the program forked, and whose end is its own
        if error is not None and self._session is not None:
            self._session.escaped(error)
        status = program.show(error)
        program.wind_down()
        if error is None or (isinstance(error, SystemExit) and status == 0):
            self._finish(Ended.WELL)
        elif isinstance(error, SystemExit):
            self._finish(Ended.EXIT, error=f"exit status {status}")
        said = str(error).strip().splitlines()
        self._finish(Ended.RAISED, error=": ".join([type(error).__name__, *said[:1]]))

    def _torch_is_there(self) -> None:
        from noclobber.observe import subscription
        from noclobber.observe.gradient_trace import evidence, right_gradients
        from noclobber.observe.gradient_trace.central_differences import Moved
        from noclobber.observe.gradient_trace.forward_mode import ForwardMode

        generators.begin_torch()
        order, mode = self._order, self._order.mode
        if mode in FORWARD:
            updates = mode == "updated"
            self._tangents = (
                ForwardMode(updates=updates)
                if order.step is None
                else Moved(updates=updates, step=order.step, number=order.direction)
            )
        seen = self._evidence = evidence.Evidence(
            sys.maxsize if mode == "search" else order.backwards,
            order.seconds,
            wanted="loss" if mode in ("search", "hints", "memory", *FORWARD) else "gradients",
            whole=order.whole,
            truncation=order.truncation,
            retaining=order.retaining,
            forward=self._tangents,
            after=order.after,
            before=subscription.overwritten_by if order.before else None,
        )
        seen.full = lambda: self._finish(Ended.LIMIT)
        if mode in FORWARD:
            seen.started = seen.full
            right_gradients.compile_nothing()
            right_gradients.permit_inference_writes()
            right_gradients.map_by_loops()
        if mode == "search":
            seen.looked = self._looked
        if order.double:
            right_gradients.in_float64()
        if order.handing:
            right_gradients.hand_out_clones()
        seen.arm(self._watching())
        if mode == "memory":
            self._measure()
        if mode == "search" and self._session is not None:
            files = os.path.join(self._folder, "processes")
            os.mkdir(files)
            self._member = Member(Run(files, contents=True, on_write="record"), self._session, [])
            self._member.begin()
        if self._tangents is not None and order.after:
            seen.reached = self._tangents.begin
        elif self._tangents is not None:
            self._tangents.begin()

    def _measure(self) -> None:
        from noclobber.observe.measured_peak import MeasuredPeak

        peak = MeasuredPeak()
        with suppress(RuntimeError):  # the environment may have started a profiler
            peak.begin()
            self._peak = peak

    def _listen_to_warnings(self) -> None:
        """Note the warning for `.grad` of a non-leaf: it is None, and a patch that rebinds a name may cause it."""
        show = warnings.showwarning

        def showwarning(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            self._lost |= _READS_NO_GRADIENT in str(message)
            show(message, *args, **kwargs)

        warnings.showwarning = showwarning

    def _watching(self) -> Callable[[], None]:
        from noclobber.observe.gradient_trace import right_gradients

        mode = self._order.mode
        if mode == "clones":
            return right_gradients.clone_saves
        if mode in ("bare", "memory", *FORWARD):
            return lambda: None
        self._session = Session(contents=True, keeping=mode == "reference", hints=mode == "hints")
        return self._session.start

    def _looked(self) -> None:
        """After the first finding, a search goes on for as many backward calls as a proof needs."""
        if self._found_at is None and self._evidence and self._has_found():
            self._found_at = self._evidence.begun
            self._evidence.limit(self._evidence.done + self._order.backwards)

    def _has_found(self) -> bool:
        """Return True if something was found that counts."""
        found = self._session.findings if self._session is not None else ()
        return bool(found) and bool(self._selected(Report(found)).findings)

    def _selected(self, report: Report) -> Report:
        """Return the report with what counts. A reference has all: they say how far its gradients are right."""
        judged = self._order.mode in ("search", "watch", "hints")
        return selected(report, self._order.selection, must_exist=False) if judged else report

    def _finish(self, ended: Ended, *, error: str = "") -> NoReturn:
        seen, session = self._evidence, self._session
        result = Result(ended=ended, error=error, lost=self._lost, torch="torch" in sys.modules)
        if self._peak is not None:
            with suppress(RuntimeError):
                result.peak = self._peak.end()
        if self._tangents is not None:
            result.rewritten, result.given = self._tangents.rewritten, self._tangents.given
            result.custom = self._tangents.custom
        if self._member is not None:
            self._look_elsewhere(result, self._member)
        if session is not None:
            session.stop()
            try:
                result.report = self._selected(session.proposed()).to_json()
            except Exception as crash:
                result.crash = f"{type(crash).__name__}: {crash}"
        if seen is not None:
            from noclobber.observe.gradient_trace import evidence

            if ended is Ended.WELL:
                seen.ended()
            if self._found_at is None and self._has_found():
                self._found_at = max(seen.begun, 1)
            result.calls, result.begun, result.found_at, result.saved = (
                seen.done,
                seen.begun,
                self._found_at,
                seen.saved,
            )
            evidence.write(seen.events, os.path.join(self._folder, "evidence.pt"))
        unfinished = os.path.join(self._folder, "unfinished.json")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(result.to_json())
        os.replace(unfinished, os.path.join(self._folder, "result.json"))
        program.flush()
        # What the program set up to run at its end is not part of the evidence, and might wait for what never comes.
        os._exit(0)

    def _look_elsewhere(self, result: Result, member: Member) -> None:
        """Note what the processes found that the program started, and which of them were not watched."""
        with suppress(OSError, ReportError):
            report = self._selected(report_of(member.order.folder))
            others = [one for one in report.findings if one.severity != "hint" and member.id not in one.processes]
            result.elsewhere = next((f"{one.code} at {place(one.primary.span)}" for one in others if one.primary), "")
            result.unwatched = [f"`{one.typed()}`" for one in report.processes if one.why]
