"""Which of several proven candidates is chosen; what a run would show is told here by the patched text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof import search
from noclobber.fix.proof.repairs import Level, Repairs, Verdict
from noclobber.fix.proof.search import RepairSearch
from noclobber.fix.proof.trials.job import Ended, Result
from noclobber.mend.change import LAST_RESORT, Change
from noclobber.model.reports.finding import Edit, Finding, Label
from noclobber.model.reports.report import Coverage, Report
from noclobber.model.seen.events import Refusal, Tensor
from noclobber.model.source import Span

Shown = Callable[[str], Verdict]


def finding(path: Path, name: str) -> Finding:
    return Finding("NC101", "a rule", "error", "m", (Label("write", Span(str(path), 1, 1, 1, 2), "", True),)).about(
        Refusal("", tensor=Tensor(name=name))
    )


def result(*left: Finding, saved: int = 0) -> Result:
    report = Report(left, Coverage()).to_json() if left else ""
    return Result(Ended.WELL, saved=saved, report=report)


@dataclass
class Run:
    """Stands for a trial of a patched text."""

    text: str
    ended: list[str]

    def end(self) -> None:
        self.ended.append(self.text)


class Told:
    """Stands for a prover: judges by the patched text, and notes what it judged, and which runs were ended."""

    def __init__(self, search: Result, shown: Shown) -> None:
        self.search, self.shown = search, shown
        self.codes: set[str] = set()
        self.judged: list[str] = []
        self.ended: list[str] = []

    def meet(self, finding: Finding, *about: object) -> None:
        self.codes.add(finding.code)

    def start(self, patch: Patch, mode: str = "watch") -> Run:
        return Run(next(iter(patch.after.values())).plain, self.ended)

    def judge(self, trial: Run, patch: Patch, before: Patch, finding: Finding, *, way: str, is_sound: bool) -> Verdict:
        self.judged.append(trial.text)
        return self.shown(trial.text)

    def drift(self) -> str:
        return ""


@pytest.fixture
def mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, Repairs, Told]]:
    path = tmp_path / "program.py"
    path.write_text("x = 0\n")

    def run(texts: dict[str, int], shown: Callable[[str, Path], Verdict], *more: Change) -> tuple[str, Repairs, Told]:
        one = [Change(text, (Edit(Span(str(path), 1, 5, 1, 6), text),), cost) for text, cost in texts.items()]
        one += more
        monkeypatch.setattr(search, "candidates", lambda *_: one)
        told = Told(result(finding(path, "h")), lambda text: shown(text, path))
        done = RepairSearch(told, lambda _: None).search()  # type: ignore[arg-type]
        return done.patch.read(str(path)), done, told

    return run


def proven(saved: int = 0) -> Verdict:
    return Verdict(True, clean=True, proof="all of it", level=Level.PROVEN, result=result(saved=saved))


def test_the_first_that_is_proven_is_taken(mended):
    text, _, told = mended({"1": 1, "2": 2, "3": 3}, lambda *_: proven())
    assert (text, {*told.judged}) == ("x = 1\n", {"x = 1\n"})


def test_a_last_resort_is_taken_where_nothing_else_is_proven(mended):
    text, _, _ = mended({"1": 1, "2": LAST_RESORT}, lambda text, _: proven(0 if "2" in text else 1000))
    assert text == "x = 1\n"
    only = lambda text, _: proven() if "2" in text else Verdict(False, why="no")  # noqa: E731
    assert mended({"1": 1, "2": LAST_RESORT}, only)[0] == "x = 2\n"


def test_what_leaves_a_finding_of_the_same_write_is_not_preferred(mended):
    def shown(text: str, path: Path) -> Verdict:
        return proven() if "2" in text else Verdict(True, result=result(finding(path, "g")))

    text, done, _ = mended({"1": 1, "2": 2}, shown)
    assert (text, done.left) == ("x = 2\n", [])


def test_what_leaves_findings_of_other_writes_is_gone_on_from_at_once(mended):
    def shown(text: str, path: Path) -> Verdict:
        if text == "x = 1\n":
            return Verdict(True, elsewhere=True, proof="in 0 calls", result=result(finding(path, "g")))
        return proven()

    text, done, told = mended({"1": 1, "2": 2}, shown)
    assert (text, done.left) == ("x = 2\n", [])
    assert [one.finding.names for one in done.repairs] == [("h",), ("g",)]
    assert [one.proof for one in done.repairs] == ["all of it"] * 2  # the whole patch was proven once more
    assert all(one.level is Level.PROVEN for one in done.repairs)
    assert told.judged[0] == "x = 1\n"
    assert told.judged.count("x = 1\n") == 1


@pytest.mark.parametrize(("needs_both", "left"), [(False, "x = 0\ny = 2\n"), (True, "x = 1\ny = 2\n")])
def test_what_a_later_change_made_needless_is_taken_out(tmp_path, monkeypatch, needs_both, left):
    path = tmp_path / "program.py"
    path.write_text("x = 0\ny = 0\n")
    changes = {"h": Change("1", (Edit(Span(str(path), 1, 5, 1, 6), "1"),), 1)}
    changes["g"] = Change("2", (Edit(Span(str(path), 2, 5, 2, 6), "2"),), 1)
    monkeypatch.setattr(search, "candidates", lambda finding, *_: [changes[finding.names[0]]])

    def shown(text: str) -> Verdict:
        if "2" not in text:
            return Verdict(True, elsewhere=True, result=result(finding(path, "g")))
        return Verdict(False) if needs_both and "1" not in text else proven()

    told = Told(result(finding(path, "h")), shown)
    done = RepairSearch(told, lambda _: None).search()  # type: ignore[arg-type]
    assert done.patch.read(str(path)) == left
    assert [one.title for one in done.repairs] == (["1", "2"] if needs_both else ["2", "2"])
    assert [one.level for one in done.repairs] == [Level.PROVEN] * 2


def test_a_part_of_a_patch_is_not_called_proven(mended):
    def shown(text: str, path: Path) -> Verdict:
        return Verdict(True, elsewhere=True, proof="in 0 calls", result=result(finding(path, "g")))

    _, done, _ = mended({"1": 1}, shown)
    assert done.left
    assert all("another one is left" in one.proof and one.level is Level.UNPROVEN for one in done.repairs)


def test_a_finding_is_told_with_its_line_in_the_file_as_it_is(mended):
    def shown(text: str, path: Path) -> Verdict:
        if text != "x = 1\nx = 0\n":
            return proven() if "1" in text else Verdict(False)
        there = Label("write", Span(str(path), 2, 1, 2, 2), "", True)
        return Verdict(True, elsewhere=True, result=result(replace(finding(path, "g"), labels=(there,))))

    text, done, _ = mended({"1\nx = 0": 1}, shown)
    assert text == "x = 1\nx = 0\nx = 0\n"
    assert [one.finding.labels[0].span.line for one in done.repairs] == [1, 1]  # the second was in line 2 by then


def test_that_a_likelier_patch_changes_what_others_see_is_said(mended):
    def shown(text: str, path: Path) -> Verdict:
        return proven() if "2" in text else Verdict(False, why="other", differs=True, of_loss=True)

    _, done, _ = mended({"1": 1, "2": 2}, shown)
    assert done.repairs[0].proof == "all of it; `1` would change the loss: other code reads the written values"


def test_where_nothing_can_be_compared_it_goes_on_only_if_that_is_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "program.py"
    path.write_text("x = 0\n")
    one = Change("1", (Edit(Span(str(path), 1, 5, 1, 6), "1"),), 1)
    monkeypatch.setattr(search, "candidates", lambda *_: [one])
    differs = Verdict(False, why="the loss differs", differs=True, result=result())
    told = Told(result(finding(path, "h")), lambda text: differs)
    told.drift = lambda: "the loss differs"  # type: ignore[method-assign]
    offered = RepairSearch(told, lambda _: None).search()  # type: ignore[arg-type]
    assert (offered.patch.after, len(offered.left), len(offered.unproven)) == ({}, 1, 1)
    taken = RepairSearch(told, lambda _: None, unproven=True).search()  # type: ignore[arg-type]
    assert (taken.patch.read(str(path)), taken.left, taken.unproven) == ("x = 1\n", [], [])
    assert [one.level for one in taken.repairs] == [Level.UNPROVEN]


def test_what_could_be_compared_and_is_comes_before_what_could_be_and_is_not(mended):
    checked = Verdict(True, clean=True, proof="it runs", comparable=True, result=result())

    def shown(text: str, path: Path) -> Verdict:
        return (
            Verdict(True, clean=True, proof="all of it", level=Level.PROVEN, result=result())
            if "2" in text
            else checked
        )

    text, done, told = mended({"1": 1, "2": 2, "3": 3}, shown)
    assert (text, [one.level for one in done.repairs]) == ("x = 2\n", [Level.PROVEN])
    assert "x = 3\n" not in told.judged
    assert "x = 3\n" in told.ended  # it ran while the second was judged
    assert mended({"1": 1, "3": 2}, lambda *_: checked)[0] == "x = 1\n"
