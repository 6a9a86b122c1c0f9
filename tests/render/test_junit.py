"""Facts of JUnit: a program that failed, or in which nothing was watched, has not passed."""

from __future__ import annotations

from xml.etree import ElementTree

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Lost, Report
from noclobber.render import render

PROGRAM = {"argv": ["train.py"], "status": 0, "torch": "2.13.0", "python": "3.11.0"}


def suite(report: Report) -> tuple[dict[str, str], list[tuple[str, str]], str]:
    """The counts; the cases with what they hold, and its message; the output of the suite."""
    (one,) = ElementTree.fromstring(render(report, "junit").encode())
    cases = [
        (child.tag, child.get("message") or child.text or "")
        for case in one.findall("testcase")
        for child in case or [case]
    ]
    return {key: one.attrib[key] for key in ("failures", "errors", "skipped")}, cases, one.findtext("system-out") or ""


def counts(failures: int = 0, errors: int = 0, skipped: int = 0) -> dict[str, str]:
    return {"failures": str(failures), "errors": str(errors), "skipped": str(skipped)}


def test_nothing_found_passes_and_says_what_was_not_watched() -> None:
    lost = (Lost("hooks", "not in this release"),)
    covered = Coverage(unseen=("sparse tensors", "a child & more"), lost=lost, backwards=12)
    seen = Report(program=PROGRAM, coverage=covered)
    said = "not watched: sparse tensors\nnot watched: a child & more\nnot watched: hooks: not in this release\n"
    checked = "nothing found in what was watched (12 backward calls)"
    assert suite(seen) == (counts(), [("system-out", checked)], said)


def test_a_program_that_ran_no_backward_is_skipped() -> None:
    why = ("skipped", "no backward ran: nothing was checked")
    assert suite(Report(program=PROGRAM))[:2] == (counts(skipped=1), [why])
    both = suite(Report(program=PROGRAM | {"status": 3}))
    assert both[:2] == (counts(errors=1, skipped=1), [("error", "the program ended with exit status 3"), why])


def test_a_program_that_failed_is_an_error() -> None:
    failed = Report(program=PROGRAM | {"status": 3}, coverage=Coverage(contents=True, backwards=2))
    checked = "nothing found in 2 backward calls, until the program failed"
    cases = [("error", "the program ended with exit status 3"), ("system-out", checked)]
    assert suite(failed)[:2] == (counts(errors=1), cases)


def test_a_program_that_was_killed_is_an_error() -> None:
    killed = Process("a", None, 1, "", ("train.py",), torch="2.13.0", state="lost")
    cases = suite(Report(program=PROGRAM, coverage=Coverage(backwards=2), processes=(killed,)))[1]
    assert cases[0] == ("error", "the program was killed")


def test_a_program_that_failed_because_of_a_finding_is_a_failure() -> None:
    found = Finding("NC101", "stale-save", "error", "m", ())
    assert suite(Report((found,), program=PROGRAM | {"status": 1}))[:2] == (counts(failures=1), [("failure", "m")])


def test_a_program_in_which_nothing_was_watched_is_skipped() -> None:
    why = ("skipped", "nothing was watched: PyTorch was never imported")
    assert suite(Report(program=PROGRAM | {"torch": None}))[:2] == (counts(skipped=1), [why])
    both = suite(Report(program=PROGRAM | {"torch": None, "status": 1}))
    assert both[:2] == (counts(errors=1, skipped=1), [("error", "the program ended with exit status 1"), why])
