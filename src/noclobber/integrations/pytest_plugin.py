"""The pytest plugin: `pytest --noclobber` watches every test, and fails those in which a gradient is wrong.

It does nothing unless it is asked to, by the option, by `noclobber = true` in the configuration, or by a test that uses
the fixture `noclobber`.
"""

from __future__ import annotations

import doctest
import os
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from noclobber.model.forks import at_fork
from noclobber.model.plain import built
from noclobber.model.reports.error import ClobberError, UnsupportedTorch
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Coverage, Report, Suppressed, finding_out
from noclobber.model.tracebacks import without_own_frames
from noclobber.model.units import counted
from noclobber.observe.torch_api.patches import Patches
from noclobber.processes.children import notice_children, starts_program_in_python
from noclobber.session.imports import after_import
from noclobber.session.session import Session

if TYPE_CHECKING:
    from noclobber.settings.selection import Selection

MARK = "noclobber"
_OUTSIDE_OF_TESTS = "outside of tests"
_NO_CODES = '`ignore` takes a list of codes such as ["NC208"], not {!r}'
_CLOBBER_ERROR = f"{ClobberError.__module__}.{ClobberError.__qualname__}:"
_HELP = "watch every test, and fail those with an in-place write that makes a gradient wrong"


class Watched:
    """What was found in one test: the value of the fixture `noclobber`. Also what was found outside of all tests."""

    def __init__(
        self,
        selection: Selection | None,
        *,
        contents: bool = True,
        ignore: tuple[str, ...] = (),
        fails: bool = False,
        notes: bool = False,
    ) -> None:
        self._session = Session(contents=contents, notes=notes)
        self._selection = selection
        self._ignore = ignore
        self._wanted = False
        self.fails = fails
        """Whether an error that is found fails the test. A test that uses the fixture judges by itself."""
        self.told = 0
        """How many findings are in the reports of earlier phases of the test."""
        self.in_phase = False
        """Whether a phase of the test runs. A report that is made meanwhile is that of a subtest."""
        self.has_failed_it = False
        """Whether the phase that has just ended failed for what noclobber found in it, and for nothing else."""
        self.wrong_mark = ""
        """What is wrong with the marks of the test; empty if nothing is."""
        self.unsupported = ""
        self._children: dict[str, None] = {}
        """What started and is not watched, in words."""

    def __repr__(self) -> str:
        return f"<noclobber: {counted(len(self.findings), 'finding')}>"

    def start(self) -> None:
        """Watch from now on, or from when torch is imported."""
        self._wanted = True
        if not _watching:
            notice_children(_started, _patches)
        _watching.append(self)
        at_fork(before=_before_fork)
        after_import("torch", self._torch_is_there)

    def _torch_is_there(self) -> None:
        if not self._wanted or self._session.started:
            return
        try:
            self._session.start()
        except UnsupportedTorch as reason:
            self.unsupported = str(reason)

    def stop(self) -> None:
        self._wanted = False
        if self in _watching:
            _watching.remove(self)
            if not _watching:
                _patches.undo()
        self._session.stop()

    def not_watching(self, children: str) -> None:
        """Note that children start that are not watched."""
        self._children[children] = None

    def explain(self, error: BaseException) -> list[Finding]:
        """Add the report to an error that leaves the test, and to those that it came from. Return what is reported."""
        from noclobber.render import render

        told: list[Finding] = []
        unexpected = (
            one for one in getattr(error, "failures", [error]) if isinstance(one, doctest.UnexpectedException)
        )
        of_doctest = [one.exc_info[1] for one in unexpected]  # what an example has raised
        for one, findings in chain.from_iterable(map(self._session.escaped, of_doctest or [error])):
            counting = self._counting(Report(findings)).findings
            text = render(Report(counting), "full") if counting else ""
            if text and text not in getattr(one, "__notes__", ()):
                one.add_note(text)
            told += counting
        return told

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far and counts: by the mark of the test, comments on lines, and [tool.noclobber]."""
        return self.report.findings

    @property
    def report(self) -> Report:
        """What was found so far and counts, and what was watched."""
        return self._counting(self._session.report())

    def _counting(self, report: Report) -> Report:
        from noclobber.settings.selection import Selection, selected

        if report.findings:
            report = selected(report, self._selection or Selection())
        marked = [one for one in report.findings if one.code.startswith(self._ignore)]
        return replace(
            report,
            findings=tuple(one for one in report.findings if one not in marked),
            suppressed=(*report.suppressed, *(Suppressed(one, "external", "by mark") for one in marked)),
        )

    def severe(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return those that fail a test, though nothing is raised. What is raised, the test may be there to catch."""
        return [one for one in findings if _is_severe(one, self._selection) and _is_silent(one)]

    def about(self, findings: Iterable[Finding]) -> dict[str, Any]:
        """Return what the summary gets of what was watched, as plain data."""
        from noclobber.render.judged import why_left_out

        report = self.report
        coverage = report.coverage
        unseen = [one.partition(" (")[0] for one in coverage.unseen]
        return {
            "findings": [finding_out(one) for one in findings],
            "left_out": dict(why_left_out(report)),
            "unsupported": self.unsupported,
            "unseen": [*unseen, *self._children, *(f"{one.way}: {one.why}" for one in coverage.lost)],
            "calls": (coverage.backwards, coverage.raised),
        }


_watching: list[Watched] = []
"""Those that watch now."""
_patches = Patches()
"""What notices the programs that start, while anyone watches."""


def _before_fork() -> None:
    for one in _watching:
        one.not_watching("processes that tests fork")


def _started(pid: int | None, command: list[str]) -> None:
    if starts_program_in_python(command):
        for one in _watching:
            one.not_watching("Python programs that tests start")


def _is_severe(finding: Finding, selection: Selection | None) -> bool:
    """Return True for what fails a test: errors, or what `fail-on` says."""
    return finding.severity == "error" if selection is None else selection.is_severe(finding)


def _is_silent(finding: Finding) -> bool:
    """Return True for a finding of which PyTorch itself raises nothing."""
    gathered = any(write.via == "gathered" for write in finding.writes)  # of what NC1 tells, FSDP2 alone is silent
    return gathered or not finding.code.startswith(("NC1", "NC3"))


_WATCHED = pytest.StashKey[Watched]()
_SELECTION = pytest.StashKey["Selection"]()
_OUTSIDE = pytest.StashKey[Watched]()
"""Watches while no test runs: test files save and write when they are imported too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("noclobber")
    group.addoption("--noclobber", action="store_true", default=None, help=_HELP)
    group.addoption("--no-noclobber", action="store_false", dest="noclobber", help="do not, whatever the setting says")
    parser.addini("noclobber", type="bool", default=False, help=_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark, read the settings, and collect what the tests report. Raises UsageError."""
    config.addinivalue_line(
        "markers",
        "noclobber(ignore=[...], contents=True): codes that do not count here; whether saved bytes are compared",
    )
    if _is_on(config):
        config.stash[_SELECTION] = selection = _selection(config)
        config.stash[_OUTSIDE] = Watched(selection, notes=True)
    config.pluginmanager.register(_Summary(config), "noclobber-summary")


def _selection(config: pytest.Config) -> Selection:
    from noclobber.settings.selection import SelectionError, from_project, read_baseline

    try:
        selection = from_project(str(config.rootpath))
        if selection.baseline:
            read_baseline(selection.baseline, must_exist=True)
    except SelectionError as reason:
        raise pytest.UsageError(f"noclobber: {reason}") from None
    return selection


def pytest_report_header(config: pytest.Config) -> str | None:
    return "noclobber: watches every test" if _is_on(config) else None


def _is_on(config: pytest.Config) -> bool:
    asked = config.getoption("noclobber")
    return bool(config.getini("noclobber") if asked is None else asked)


@pytest.fixture
def noclobber(request: pytest.FixtureRequest) -> Watched:
    """What noclobber finds in this test: `noclobber.findings`, `noclobber.report`."""
    watched: Watched = request.node.stash[_WATCHED]
    return watched


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Watch from before the first test file is imported."""
    if (outside := session.config.stash.get(_OUTSIDE, None)) is not None:
        outside.start()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was found outside of tests to the summary: a worker of xdist, to the one of the main process."""
    config = session.config
    outside = config.stash.get(_OUTSIDE, None)
    if outside is None:
        return
    outside.stop()
    summary = config.pluginmanager.get_plugin("noclobber-summary")
    assert isinstance(summary, _Summary)
    findings = [one for one in outside.findings if one.severity != "error" or _is_silent(one)]
    about = outside.about(findings)
    if hasattr(config, "workeroutput"):
        config.workeroutput["noclobber"] = about
        return
    summary.take(_OUTSIDE_OF_TESTS, about)
    if summary.hides_an_error and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test with its fixtures, from before the first to after the last."""
    on, itself = _is_on(item.config), MARK in getattr(item, "fixturenames", ())
    if not on and not itself:
        return (yield)
    ignore, contents, wrong = _asked(item)
    selection, outside = item.config.stash.get(_SELECTION, None), item.config.stash.get(_OUTSIDE, None)
    watched = Watched(selection, contents=contents, ignore=ignore, fails=on and not itself)
    watched.wrong_mark = wrong
    item.stash[_WATCHED] = watched
    # One begins before the other ends: in between, noclobber would forget what was saved before.
    watched.start()
    if outside is not None:
        outside.stop()
    try:
        with _explaining_threads(watched), _expecting_errors(item):
            return (yield)
    finally:
        if outside is not None:
            outside.start()
        watched.stop()


@contextmanager
def _explaining_threads(watched: Watched) -> Iterator[None]:
    """Explain the errors that end threads before pytest, or the program, shows them."""
    native = threading.excepthook

    def excepthook(about: threading.ExceptHookArgs) -> None:
        if about.exc_value is not None:
            watched.explain(about.exc_value)
        native(about)

    threading.excepthook = excepthook
    try:
        yield
    finally:
        if threading.excepthook is excepthook:
            threading.excepthook = native


@contextmanager
def _expecting_errors(item: pytest.Item) -> Iterator[None]:
    """Let a doctest find the RuntimeError of PyTorch that it expects, and not the ClobberError that it becomes."""
    checker = getattr(getattr(item, "runner", None), "_checker", None)
    if not isinstance(checker, doctest.OutputChecker):
        yield
        return
    native = checker.check_output

    def check_output(want: str, got: str, flags: int) -> bool:
        return native(want, got, flags) or native(want, got.replace(_CLOBBER_ERROR, "RuntimeError:", 1), flags)

    vars(checker)["check_output"] = check_output
    try:
        yield
    finally:
        del vars(checker)["check_output"]


def _asked(item: pytest.Item) -> tuple[tuple[str, ...], bool, str]:
    """Return the codes that the marks of a test ignore, whether saved bytes are compared, and what is wrong there."""
    from noclobber.settings.selection import SelectionError, codes

    ignore: list[str] = []
    contents, wrong = True, ""
    for mark in item.iter_markers(MARK):
        compared = mark.kwargs.get("contents", True)
        if mark.args or mark.kwargs.keys() - {"ignore", "contents"} or not isinstance(compared, bool):
            wrong = "the mark `noclobber` takes `ignore=[...]` and `contents=False`"
            continue
        contents = contents and compared
        given = mark.kwargs.get("ignore", ())
        if not isinstance(given, list | tuple | set | frozenset):
            wrong = _NO_CODES.format(given)
            continue
        for one in given:
            try:
                ignore += codes([one], MARK)
            except SelectionError:
                wrong = _NO_CODES.format(one)
    return tuple(ignore), contents, wrong


def _phase(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a phase of a test. Fail it if something silent went wrong in it."""
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return (yield)
    watched.in_phase = True
    try:
        done = yield
    except BaseException as error:
        without_own_frames(error)
        raise
    finally:
        watched.in_phase = False
    if watched.fails and (errors := watched.severe(watched.findings[watched.told :])):
        watched.has_failed_it = True
        pytest.fail(str(_Failure(errors)), pytrace=False)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what fixtures do before the test. Refuse a mark that noclobber does not understand."""
    watched = item.stash.get(_WATCHED, None)
    if watched is not None and watched.wrong_mark:
        pytest.fail(watched.wrong_mark, pytrace=False)
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what fixtures do after the test."""
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Explain the error that ends a phase, and add what was found to the report of the phase."""
    report: pytest.TestReport = yield
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return report
    by_us, watched.has_failed_it = watched.has_failed_it, False
    raised: list[Finding] = []
    if report.failed and call.excinfo is not None and not by_us:
        raised = watched.explain(call.excinfo.value)
        if raised:
            report.longrepr = item.repr_failure(call.excinfo)
            _without_notes(report, call.excinfo.value)
    if watched.in_phase:  # of a subtest: what is silent fails the whole test
        report.noclobber = watched.about(raised)  # type: ignore[attr-defined]
        return report
    found = watched.findings[watched.told :]
    watched.told += len(found)
    silent = watched.severe(found)
    others = [one for one in found if one not in silent and (one.severity != "error" or _is_silent(one))]
    about = watched.about([*raised, *silent, *others])
    about["shows"] = not (report.skipped or hasattr(report, "wasxfail"))
    about["expected"] = hasattr(report, "wasxfail")
    if by_us and report.failed:
        about["fails"] = len(silent)
        call.excinfo = None  # no frame of the test is left in which a debugger could stop
    elif silent and report.failed and watched.fails:
        report.sections.append(("noclobber", str(_Failure(silent))))
    report.noclobber = about  # type: ignore[attr-defined]  # travels from the workers of xdist as plain data
    return report


def _without_notes(report: pytest.TestReport, error: BaseException) -> None:
    """Take the reports out of the line of the short summary; pytest prints all of it where `CI` is set (pytest 9.2)."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        for note in getattr(error, "__notes__", ()):
            crash.message = crash.message.replace("\n" + note.rstrip("\n"), "")


class _Failure:
    """What pytest shows of a test that fails by silent errors: the report, at the line of the first write."""

    def __init__(self, errors: Iterable[Finding], style: str = "auto") -> None:
        self._style = style
        self._report = Report(tuple(errors))
        first = self._report.findings[0]
        self.reprcrash = _Place(f"noclobber: {first.message}", *_place(first))

    def toterminal(self, tw: Any) -> None:
        """Write it to a terminal, in colours where pytest uses them; nothing for `--tb=line`."""
        if self._style != "line":
            tw.write(self._text(color=tw.hasmarkup))

    def __str__(self) -> str:
        return self._text()

    def _text(self, *, color: bool = False) -> str:
        from noclobber.render import render

        return render(self._report, "full", color=color)


@dataclass
class _Place:
    """Where a test has failed, for the lines that pytest writes about it."""

    message: str
    path: str
    lineno: int

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}"


def _place(finding: Finding, *, inside: bool = False) -> tuple[str, int]:
    """Return the file and the line of a finding; with `inside`, the library's line where a library did it."""
    library = next((one for one in finding.labels if inside and one.role == "inside"), None)
    shown = library or finding.primary
    return (os.path.abspath(shown.span.path), shown.span.line) if shown is not None else ("", 0)


def _in_tests(tests: list[str]) -> str:
    """ "in net.py::a", "in 3 tests (first net.py::a)", "outside of tests"."""
    named = [one for one in tests if one != _OUTSIDE_OF_TESTS]
    found = [f"in {len(named)} tests (first {named[0]})" if len(named) > 1 else f"in {one}" for one in named[:1]]
    return " and ".join([*found, _OUTSIDE_OF_TESTS] if len(named) < len(tests) else found)


class _Summary:
    """What the tests found, for the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._style = config.getoption("tbstyle", "auto")
        self._tests: set[str] = set()
        self._skipped: set[str] = set()
        self._selection = config.stash.get(_SELECTION, None)
        self._failing: Counter[str] = Counter()
        """How many findings failed a test, by severity."""
        self._listed: dict[tuple[str, str, int], tuple[Finding, dict[str, None]]] = {}
        """What is listed: by code, file and line, the first finding and the tests that found it."""
        self._left_out: dict[str, Counter[str]] = {}
        self._unsupported = ""
        self._unseen: dict[str, None] = {}
        self._calls: dict[str, tuple[int, int]] = {}
        self.hides_an_error = False
        """Whether there was an error outside of tests, or in one that was skipped then: pytest shows no failure."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what one phase of a test found. Give a failure its report, before others write it."""
        about = getattr(report, "noclobber", None)
        if about is None:
            return
        if fails := about.get("fails", 0):
            errors = (built(Finding, one) for one in about["findings"][:fails])
            report.longrepr = _Failure(errors, self._style)  # type: ignore[assignment]
        self._tests.add(report.nodeid)
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.add(report.nodeid)
        self.take(report.nodeid, about)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect what a worker of xdist found outside of tests."""
        if about := getattr(node, "workeroutput", {}).get("noclobber"):
            self.take(_OUTSIDE_OF_TESTS, about)

    def take(self, where: str, about: dict[str, Any]) -> None:
        """Collect what was found, in a test or outside of tests."""
        outside = where == _OUTSIDE_OF_TESTS
        self._left_out[where] = Counter(about["left_out"])
        self._unsupported = self._unsupported or about["unsupported"]
        self._unseen.update(dict.fromkeys(about["unseen"]))
        self._calls[where] = about["calls"]
        for finding in (built(Finding, one) for one in about["findings"]):
            severe = _is_severe(finding, self._selection)
            shows = not outside and about.get("shows", True)
            self.hides_an_error = self.hides_an_error or (severe and not shows and not about.get("expected"))
            if severe and shows:
                self._failing[finding.severity] += 1
            else:
                place = finding.code, *_place(finding, inside=True)
                self._listed.setdefault(place, (finding, {}))[1][where] = None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the warnings and what was found outside of tests, list their places, and say how much was watched."""
        if not self._tests and not self._listed:
            return
        from noclobber.render import window
        from noclobber.render.judged import in_words
        from noclobber.render.text import one_line, place_of_line

        write = terminalreporter.write_line
        if self._listed:
            terminalreporter.section("noclobber", sep="=")
        if self._style not in ("no", "line"):
            for finding, _ in self._listed.values():
                write(window(finding, color=terminalreporter.hasmarkup))
        for (code, path, line), (finding, where) in self._listed.items():
            told = f"{finding.severity} {_in_tests(list(where))}: {one_line(finding.message)}"
            write(f"{code} {place_of_line(path, line)}: {told}")
        if self._unsupported:
            write(f"noclobber: {self._unsupported}", red=True)
        counts = Counter(finding.severity for finding, _ in self._listed.values()) + self._failing
        found = [counted(count, what) for what, count in sorted(counts.items()) if count]
        of = counted(len(self._tests - self._skipped), "test")
        out = in_words(sum(self._left_out.values(), Counter()))
        left = f" (left out: {out})" if out else ""
        write(f"noclobber: watched {of}: {', '.join(found) or self._nothing_found()}{left}")
        if self._unseen:
            write(f"not watched: {'; '.join(self._unseen)}")

    def _nothing_found(self) -> str:
        from noclobber.render.judged import nothing_found

        backwards, raised = (sum(calls) for calls in zip(*self._calls.values(), strict=True))
        covered = Coverage(contents=True, unseen=tuple(self._unseen), backwards=backwards, raised=raised)
        return nothing_found(Report(coverage=covered))
