"""The pytest plugin: `pytest --noclobber` watches every test, and fails those in which a gradient is wrong.

It does nothing unless it is asked to, by the option, by `noclobber = true` in the configuration, or by a test that uses
the fixture `noclobber`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from noclobber.imports import after_import
from noclobber.model.error import UnsupportedTorch
from noclobber.model.finding import Finding
from noclobber.model.report import Report, finding_in, finding_out
from noclobber.session import Session

MARK = "noclobber"
_CODE = re.compile(r"NC\d{3}")
_HELP = "watch every test, and fail those with an in-place write that makes a gradient wrong"


class Watched:
    """What was found in one test: the value of the fixture `noclobber`."""

    def __init__(self, *, contents: bool, ignore: frozenset[str], fails: bool) -> None:
        self._session = Session(contents=contents, notes=True)
        self._ignore = ignore
        self.fails = fails
        """Whether an error that is found fails the test. It does not if only the fixture watches."""
        self.told = 0
        """How many findings are in the reports of earlier phases of the test."""
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
        """What was found so far, without the codes that the test ignores."""
        return tuple(one for one in self.report.findings if one.code not in self._ignore)

    @property
    def report(self) -> Report:
        """Everything that was found, and what was watched."""
        return self._session.report()


_WATCHED = pytest.StashKey[Watched]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting."""
    group = parser.getgroup("noclobber")
    group.addoption("--noclobber", action="store_true", default=None, help=_HELP)
    group.addoption("--no-noclobber", action="store_false", dest="noclobber", help="do not, whatever the setting says")
    parser.addini("noclobber", type="bool", default=False, help=_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark, and collect what the tests report."""
    config.addinivalue_line(
        "markers",
        "noclobber(ignore=[...], contents=True): codes that do not count here; whether saved bytes are compared",
    )
    config.pluginmanager.register(_Summary(config), "noclobber-summary")


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
    on = _is_on(item.config)
    if not on and MARK not in getattr(item, "fixturenames", ()):
        return (yield)
    ignore: set[str] = set()
    contents = True
    for mark in item.iter_markers(MARK):
        ignore.update(mark.kwargs.get("ignore", ()))
        contents = contents and mark.kwargs.get("contents", True)
    watched = item.stash[_WATCHED] = Watched(contents=contents, ignore=frozenset(ignore), fails=on)
    watched.start()
    try:
        return (yield)
    finally:
        watched.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a mark that noclobber does not understand. Raises UsageError."""
    for item in items:
        for mark in item.iter_markers(MARK):
            if why := _wrong(mark):
                raise pytest.UsageError(f"{item.nodeid}: {why}")


def _wrong(mark: pytest.Mark) -> str:
    if mark.args or mark.kwargs.keys() - {"ignore", "contents"}:
        return "the mark `noclobber` takes `ignore=[...]` and `contents=False`"
    codes = mark.kwargs.get("ignore", ())
    for one in [codes] if isinstance(codes, str) else codes:
        if isinstance(codes, str) or not _CODE.fullmatch(str(one)):
            return f'`ignore` takes a list of codes such as ["NC208"], not {one!r}'
    return ""


def _explaining(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except BaseException as error:
        if (watched := item.stash.get(_WATCHED, None)) is not None:
            watched.escaped(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Explain an error of a fixture."""
    return (yield from _explaining(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Explain an error of the test."""
    return (yield from _explaining(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add what was found to the report of a phase, and fail it if an error was found."""
    report: pytest.TestReport = yield
    watched = item.stash.get(_WATCHED, None)
    if watched is None:
        return report
    findings = watched.findings[watched.told :]
    watched.told += len(findings)
    about: dict[str, Any] = {"findings": [finding_out(one) for one in findings], "unsupported": watched.unsupported}
    report.noclobber = about  # type: ignore[attr-defined]  # travels from the workers of xdist as plain data
    errors = [one for one in findings if one.severity == "error"]
    if not errors or not watched.fails:
        return report
    from noclobber.render import render

    if report.passed:
        report.outcome = "failed"
        report.longrepr = f"noclobber: {errors[0].message}"
    noted = "\n".join(getattr(call.excinfo.value, "__notes__", ()) if call.excinfo is not None else ())
    untold = tuple(one for one in errors if f"error[{one.code}]: {one.message}" not in noted)
    if report.failed and untold:
        report.sections.append(("noclobber", render(Report(untold), "full")))
    return report


class _Summary:
    """What the tests found, for the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._on = _is_on(config)
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._warnings: list[tuple[str, Finding]] = []
        self._unsupported = ""
        self._seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what one phase of a test found."""
        about = getattr(report, "noclobber", None)
        if about is None:
            return
        self._seen.add(report.nodeid)
        self._seconds += report.duration
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
        tests = f"{len(self._seen)} test{'s' * (len(self._seen) != 1)}"
        write(f"noclobber: watched {tests} ({self._seconds:.1f} s): {', '.join(found) or 'nothing found'}")
