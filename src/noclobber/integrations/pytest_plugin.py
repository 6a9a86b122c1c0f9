"""The pytest plugin: `pytest --noclobber` watches every test, and fails those in which a gradient is wrong.

It does nothing unless it is asked to, by the option, by `noclobber = true` in the configuration, or by a test that uses
the fixture `noclobber`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from noclobber.imports import after_import
from noclobber.model.error import UnsupportedTorch
from noclobber.model.finding import Finding
from noclobber.model.report import Report, finding_in, finding_out
from noclobber.session import Session

if TYPE_CHECKING:
    from noclobber.selection import Selection

MARK = "noclobber"
_CODE = re.compile(r"NC\d{3}")
_HELP = "watch every test, and fail those with an in-place write that makes a gradient wrong"


class Watched:
    """What was found in one test: the value of the fixture `noclobber`."""

    def __init__(self, selection: Selection | None, *, contents: bool, ignore: frozenset[str], fails: bool) -> None:
        self._session = Session(contents=contents, notes=True)
        self._selection = selection
        self._ignore = ignore
        self.fails = fails
        """Whether an error that is found fails the test. A test that uses the fixture judges by itself."""
        self.told = 0
        """How many findings are in the reports of earlier phases of the test."""
        self.suppressed = 0
        self.unsupported = ""

    def start(self) -> None:
        """Watch from now on, or from when torch is imported."""
        after_import("torch", self._torch_is_there)

    def _torch_is_there(self) -> None:
        try:
            self._session.start()
        except UnsupportedTorch as reason:
            self.unsupported = str(reason)

    def stop(self) -> None:
        """Stop watching."""
        self._session.stop()

    def escaped(self, error: BaseException) -> None:
        """Explain an error that leaves a phase of the test, if it is about writing in place."""
        self._session.escaped(error)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far and counts: by the mark of the test, comments on lines, and [tool.noclobber]."""
        return self.report.findings

    @property
    def report(self) -> Report:
        """What was found so far and counts, and what was watched."""
        from noclobber.selection import Selection, selected

        report = self._session.report()
        if report.findings:
            report = selected(report, self._selection or Selection())
            self.suppressed = len(report.suppressed)
        return replace(report, findings=tuple(one for one in report.findings if one.code not in self._ignore))

    def silent_errors(self) -> list[Finding]:
        """Return the errors of this phase that nothing raised. What PyTorch raised, the test may be there to catch."""
        return [one for one in self.findings[self.told :] if one.severity == "error" and not is_raised(one)]


def is_raised(finding: Finding) -> bool:
    """Return True if PyTorch itself raises an error about this."""
    return finding.code.startswith(("NC1", "NC3"))


_WATCHED = pytest.StashKey[Watched]()
_SELECTION = pytest.StashKey["Selection"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting."""
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
        config.stash[_SELECTION] = _selection(config)
    config.pluginmanager.register(_Summary(config), "noclobber-summary")


def _selection(config: pytest.Config) -> Selection:
    from noclobber.selection import SelectionError, from_project, require

    try:
        selection = from_project(str(config.rootpath))
        if selection.baseline:
            require(selection.baseline)
    except SelectionError as reason:
        raise pytest.UsageError(f"noclobber: {reason}") from None
    return selection


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that tests are watched."""
    return "noclobber: watches every test" if _is_on(config) else None


def _is_on(config: pytest.Config) -> bool:
    asked = config.getoption("noclobber")
    return bool(config.getini("noclobber") if asked is None else asked)


@pytest.fixture
def noclobber(request: pytest.FixtureRequest) -> Watched:
    """What noclobber finds in this test: `noclobber.findings`, `noclobber.report`."""
    watched: Watched = request.node.stash[_WATCHED]
    return watched


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test with its fixtures, from before the first to after the last."""
    on, itself = _is_on(item.config), MARK in getattr(item, "fixturenames", ())
    if not on and not itself:
        return (yield)
    ignore: set[str] = set()
    contents = True
    for mark in item.iter_markers(MARK):
        if not _wrong(mark):
            ignore.update(mark.kwargs.get("ignore", ()))
            contents = contents and mark.kwargs.get("contents", True)
    selection = item.config.stash.get(_SELECTION, None)
    watched = Watched(selection, contents=contents, ignore=frozenset(ignore), fails=on and not itself)
    item.stash[_WATCHED] = watched
    watched.start()
    try:
        return (yield)
    finally:
        watched.stop()


def _wrong(mark: pytest.Mark) -> str:
    if mark.args or mark.kwargs.keys() - {"ignore", "contents"}:
        return "the mark `noclobber` takes `ignore=[...]` and `contents=False`"
    codes = mark.kwargs.get("ignore", ())
    for one in [codes] if isinstance(codes, str) else codes:
        if isinstance(codes, str) or not _CODE.fullmatch(str(one)):
            return f'`ignore` takes a list of codes such as ["NC208"], not {one!r}'
    return ""


def _phase(item: pytest.Item) -> Generator[None, Any, Any]:
    """Explain an error of a phase of a test; fail the phase if something silent went wrong in it."""
    watched = item.stash.get(_WATCHED, None)
    try:
        done = yield
    except BaseException as error:
        if watched is not None:
            watched.escaped(error)
        raise
    if watched is not None and watched.fails and (errors := watched.silent_errors()):
        pytest.fail(f"noclobber: {errors[0].message}", pytrace=False)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what fixtures do before the test. Refuse a mark that noclobber does not understand."""
    for mark in item.iter_markers(MARK):
        if why := _wrong(mark):
            pytest.fail(why, pytrace=False)
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the test itself."""
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what fixtures do after the test."""
    return (yield from _phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add what was found to the report of a phase."""
    report: pytest.TestReport = yield
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return report
    findings = watched.findings[watched.told :]
    watched.told += len(findings)
    if report.passed:  # then the test has caught what PyTorch raised
        findings = tuple(one for one in findings if not is_raised(one))
    about: dict[str, Any] = {
        "findings": [finding_out(one) for one in findings],
        "suppressed": watched.suppressed,
        "unsupported": watched.unsupported,
    }
    report.noclobber = about  # type: ignore[attr-defined]  # travels from the workers of xdist as plain data
    errors = [one for one in findings if one.severity == "error"]
    if not errors or not watched.fails or report.passed:
        return report
    from noclobber.render import render

    notes: Sequence[str] = getattr(call.excinfo.value, "__notes__", ()) if call.excinfo is not None else ()
    _without_notes(report, [note for note in notes if any(_title(one) in note for one in errors)])
    untold = tuple(one for one in errors if not any(_title(one) in note for note in notes))
    if untold:
        report.sections.append(("noclobber", render(Report(untold), "full")))
    return report


def _title(finding: Finding) -> str:
    return f"error[{finding.code}]: {finding.message}"


def _without_notes(report: pytest.TestReport, notes: Sequence[str]) -> None:
    """Take the reports out of the line of the short summary; pytest prints all of it where `CI` is set (pytest 9.2)."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        for note in notes:
            crash.message = crash.message.replace("\n" + note.rstrip("\n"), "")


class _Summary:
    """What the tests found, for the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._on = _is_on(config)
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._warnings: list[tuple[str, Finding]] = []
        self._suppressed: dict[str, int] = {}
        self._unsupported = ""
        self._seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what one phase of a test found."""
        about = getattr(report, "noclobber", None)
        if about is None:
            return
        self._seen.add(report.nodeid)
        self._seconds += report.duration
        self._suppressed[report.nodeid] = about["suppressed"]
        self._unsupported = self._unsupported or about["unsupported"]
        for finding in map(finding_in, about["findings"]):
            self._counts[finding.severity] += 1
            if finding.severity != "error":
                self._warnings.append((report.nodeid, finding))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the warnings, and say how much was watched."""
        if not self._seen:
            return
        from noclobber.render import render

        write = terminalreporter.write_line
        if self._warnings:
            terminalreporter.section("noclobber", sep="=")
            for test, finding in self._warnings:
                write(f"{test}: {finding.severity}: {render(Report((finding,)), 'concise').rstrip()}")
        if self._unsupported:
            write(f"noclobber: {self._unsupported}", red=True)
        found = [f"{count} {what}{'s' * (count != 1)}" for what, count in sorted(self._counts.items())]
        if suppressed := sum(self._suppressed.values()):
            found.append(f"{suppressed} suppressed")
        tests = f"{len(self._seen)} test{'s' * (len(self._seen) != 1)}"
        write(f"noclobber: watched {tests} ({self._seconds:.1f} s): {', '.join(found) or 'nothing found'}")
