"""One run of a program for evidence, in its own process.

Its folder holds the order, and gets `result.json` and the evidence when the run is over. The processes that the
program starts carry out the same order. Each child writes its own result into the folder, and the launcher reads that
of the process which is looked at.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from noclobber.fix.proof.trials import generators
from noclobber.fix.proof.trials.job import DYNAMO, ENTRY, FORWARD, PROCESSES, RESULTS, Ended, Order, Result, put
from noclobber.fix.proof.trials.source_overlay import Served
from noclobber.model.reports.report import Report
from noclobber.processes.member import How, Member, kept_apart
from noclobber.processes.member import Order as Run
from noclobber.session import program
from noclobber.session.session import Session
from noclobber.settings.selection import selected

if TYPE_CHECKING:
    from noclobber.observe.gradient_trace.evidence import Evidence
    from noclobber.observe.gradient_trace.forward_mode import ForwardMode
    from noclobber.observe.memory.measured_peak import MeasuredPeak

JOIN = "join"
"""The word that stands before the order of a run in the command line of a process that joins it."""
_READS_NO_GRADIENT = "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"
"""PyTorch's warning (TensorBody.h, torch 2.13)."""


class _At:
    """Stands among the finders of modules, finds none, and calls back each time when a certain one is looked for."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name:
            self._act()


def join(run: Run) -> TrialProcess:
    """Return this new Python as a process of the trial that has started it.

    The interpreter would read a script from its file, so a script is run as that of the first process is.
    """
    if sys.argv[0] not in ("", "-", "-c", "-m"):
        switches = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
        os.execv(sys.executable, [sys.executable, *switches, ENTRY, JOIN, run.to_text(), *sys.argv])
    return _joined(run)


def join_script(words: list[str]) -> NoReturn:
    """Run a script in a process that joins the trial; `words` are the order of the run, the script and its words."""
    _joined(Run.of(words[0])).carry_out(words[1:])


def _joined(run: Run) -> TrialProcess:
    folder = os.path.dirname(run.folder)
    return TrialProcess(folder, Order.read(folder), run)


class TrialProcess(Member):
    """A process of the run, from before the program's first line to where it ends or enough is known.

    `run` is the order of the run that a process joins; None in the first process.
    """

    def __init__(
        self, folder: str, order: Order, run: Run | None = None, ask_for_dynamo: Callable[[], object] | None = None
    ) -> None:
        session = Session(contents=True, keeping=order.mode == "reference", hints=order.mode == "hints")
        super().__init__(run or _first_run(folder), session, [])
        self._joins = run is not None
        self._folder = folder
        self._order = order
        self._ask_for_dynamo = ask_for_dynamo
        self._served = Served(order.served)
        self._evidence: Evidence | None = None
        self._found_at: int | None = None
        self._lost = False
        self._tangents: ForwardMode | None = None
        self._peak: MeasuredPeak | None = None
        self._error = ""
        """What ended a child, in one line."""
        self._concluded = False
        self._script = ""

    def begin(self, how: How = "first") -> None:
        """Serve the patched source, and carry out the order as soon as torch is imported."""
        self._served.arm()
        self._listen_to_warnings()
        generators.begin()
        super().begin(how)

    def carry_out(self, words: list[str]) -> NoReturn:
        """Run the program and write what came of it; never returns."""
        sys.orig_argv[1:] = words
        self.begin("started" if self._joins else "first")
        atexit.unregister(self.end)  # how the program ended is known here
        if self._ask_for_dynamo is not None and DYNAMO not in sys.modules:  # imported there while it is imported here
            sys.meta_path.insert(0, _At(DYNAMO, self._ask_for_dynamo))
        try:
            loaded = program.load(words, self._served.read)
            self._script = os.path.abspath(loaded.argv[0])
            error = program.execute(loaded)
        except program.NotAProgram as reason:
            self._finish(Ended.REFUSED, error=str(reason))
        if error is not None:
            self.escaped(error)
        status = program.show(error)
        program.wind_down()
        self._finish(*_how_it_ended(error, status), status=status * self._joins)

    def escaped(self, error: BaseException) -> None:
        """Note what ends this process."""
        super().escaped(error)
        cause = error.__context__ if isinstance(error, SystemExit) else error
        self._error = "" if cause is None else _in_one_line(cause)

    def forked(self) -> None:
        """Go on in a forked child, whose evidence begins with it."""
        super().forked()
        self._joins, self._found_at, self._error, self._concluded = True, None, "", False
        if self._evidence is not None:
            self._evidence.begin_again()

    def end(self, status: int | None = None) -> None:
        """Write what came of a process that ends by itself."""
        super().end(status)
        if not self.in_child and self._joins:
            with kept_apart(self.crashes):
                ended = Ended.RAISED if self._error else Ended.EXIT if status else Ended.WELL
                self._conclude(ended, self._error or (f"exit status {status}" if status else ""))

    def _torch_is_there(self) -> None:
        from noclobber.observe.arming import recorder
        from noclobber.observe.gradient_trace import evidence, right_gradients
        from noclobber.observe.gradient_trace.forward_mode import ForwardMode, Moved, MovedAtFirst

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
            wanted="loss" if mode in ("search", "hints", "memory", "moved", *FORWARD) else "gradients",
            whole=order.whole,
            truncation=order.right if order.right in ("step", "backward") else "",
            retaining=order.retaining,
            forward=self._tangents,
            after=order.after,
            before=recorder.overwritten_by if order.right == "before" else None,
        )
        seen.full = self._enough
        if mode in ("moved", *FORWARD):
            seen.started = seen.full
        if mode in FORWARD:
            right_gradients.compile_nothing()
            right_gradients.permit_inference_writes()
            right_gradients.map_by_loops()
        seen.looked = self._looked
        if order.double:
            right_gradients.in_float64()
        replaced = {
            "once": right_gradients.call_regions_once,
            "handed": right_gradients.hand_out_clones,
            "returned": right_gradients.return_clones,
            "recast": right_gradients.keep_no_casts,
        }
        if order.right in replaced:
            replaced[order.right]()
        seen.arm(self._watch())
        if mode == "memory":
            self._measure()
        if self.session.started:
            self.watched = True
            self._watching()
        if mode == "moved":
            is_late = order.is_late and order.after > 0
            moved = MovedAtFirst(step=order.step or 0.0, number=order.direction, is_late=is_late)
            self._tangents = moved
            moved.begin()
            if is_late:
                seen.reached = moved.move
            else:
                moved.move()
        elif self._tangents is not None and order.after:
            seen.reached = self._tangents.begin
        elif self._tangents is not None:
            self._tangents.begin()

    def _measure(self) -> None:
        from noclobber.observe.memory.measured_peak import MeasuredPeak

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

    def _watch(self) -> Callable[[], None]:
        from noclobber.observe.gradient_trace import right_gradients

        mode = self._order.mode
        if mode == "clones":
            return right_gradients.clone_saves
        if mode in ("bare", "memory", "moved", *FORWARD):
            return lambda: None
        return self.session.start

    def _looked(self) -> None:
        """After the first finding, a search goes on for as many backward calls as a proof needs."""
        self._say_who()  # before the process group is gone, and with it the rank
        if self._order.mode == "search" and self._found_at is None and self._evidence and self._has_found():
            self._found_at = self._evidence.begun
            self._evidence.limit(self._evidence.done + self._order.backwards)
            if self._joins:
                self._write(Ended.DIED, "another process has ended it")  # it may: a data loader ends its workers

    def _has_found(self) -> bool:
        found = self.session.findings
        return bool(found) and bool(self._selected(Report(found)).findings)

    def _selected(self, report: Report) -> Report:
        """Return the report with what counts. A reference has all: they say how far its gradients are right."""
        judged = self._order.mode in ("search", "watch", "hints")
        return selected(report, self._order.selection, must_exist=False) if judged else report

    def _enough(self) -> None:
        """End the run, if the evidence of this process is what it is for. Else other processes may need this one."""
        if not self._joins and not self._order.process:
            self._finish(Ended.LIMIT)
        self._conclude(Ended.LIMIT)

    def _finish(self, ended: Ended, error: str = "", *, status: int = 0) -> NoReturn:
        self.session.stop()
        self._conclude(ended, error)
        program.flush()
        # What the program set up to run at its end is not part of the evidence, and might wait for what never comes.
        os._exit(status)

    def _conclude(self, ended: Ended, error: str = "") -> None:
        """Write what came of this process, once."""
        if self._concluded:
            return
        self._concluded = True
        self._say_who()
        self._write(ended, error)

    def _write(self, ended: Ended, error: str) -> None:
        """Write what came of this process so far."""
        seen = self._evidence
        result = Result(ended=ended, error=error, lost=self._lost, torch="torch" in sys.modules)
        result.files = tuple(program.own_files(self._script))
        if self._peak is not None:
            with suppress(RuntimeError):
                result.peak = self._peak.end()
        if self._tangents is not None:
            result.rewritten, result.given = self._tangents.rewritten, self._tangents.given
            result.custom = self._tangents.custom
        if self.watched:
            try:
                result.report = self._selected(self.session.proposed()).to_json()
            except Exception as crash:
                result.crash = f"{type(crash).__name__}: {crash}"
        path = os.path.join(self._folder, RESULTS, self.id) if self._joins else os.path.join(self._folder, "result")
        if seen is not None:
            from noclobber.observe.gradient_trace import evidence

            if ended is Ended.WELL:
                seen.ended()  # after the peak was taken, as this copies what the program leaves
            if self._found_at is None and self._has_found():
                self._found_at = max(seen.begun, 1)
            result.calls, result.saved = seen.done, seen.saved
            result.found_at = self._found_at
            evidence.write(seen.events, f"{path}.pt")
        put(f"{path}.json", result.to_json())


def _first_run(folder: str) -> Run:
    files = os.path.join(folder, PROCESSES)
    for one in (files, os.path.join(folder, RESULTS)):
        os.mkdir(one)
    return Run(files, joining=__name__)


def _how_it_ended(error: BaseException | None, status: int) -> tuple[Ended, str]:
    """Return how a program ended, in words too."""
    if error is None or (isinstance(error, SystemExit) and status == 0):
        return Ended.WELL, ""
    if isinstance(error, SystemExit):
        return Ended.EXIT, f"exit status {status}"
    return Ended.RAISED, _in_one_line(error)


def _in_one_line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *said[:1]])
