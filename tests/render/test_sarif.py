"""Facts of SARIF: what code scanning shows of a rule, where paths begin, which results are equal, how a run ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Lost, Report, Suppressed
from noclobber.model.source import Span
from noclobber.render import render
from noclobber.rules import catalogue, pages


def at(path: str, line: int, text: str, code: str = "NC201") -> Finding:
    return Finding(code, "r", "error", "m", (Label("write", Span(path, line, 1, line, 5), "", True, (text,)),))


def run_of(report: Report) -> dict[str, Any]:
    (run,) = json.loads(render(report, "sarif"))["runs"]
    return dict(run)


def paths(report: Report) -> list[str]:
    found = run_of(report)["results"]
    return [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in found]


@pytest.mark.parametrize("rule", catalogue(), ids=lambda rule: rule.code)
def test_every_rule_brings_its_page(rule: Any) -> None:
    findings = (at("a.py", 1, "", rule.code),)
    (found,) = run_of(Report(findings, pages=pages(findings)))["tool"]["driver"]["rules"]
    page = rule.text
    assert f"{rule.code} {rule.name}: {found['shortDescription']['text']}" == page.partition("\n")[0]
    assert 20 < len(found["fullDescription"]["text"]) < 1024
    assert found["help"]["text"] == page
    assert found["help"]["markdown"].startswith(f"# {rule.code} {rule.name}: ")
    assert found["help"]["markdown"].count("```python\n") == 2
    level = {"error": "error", "warning": "warning", "hint": "note"}[rule.severity]
    assert found["defaultConfiguration"] == {"level": level}


def test_a_rule_of_another_release_has_no_page() -> None:
    findings = (at("a.py", 1, "", "NC999"),)
    (found,) = run_of(Report(findings, pages=pages(findings)))["tool"]["driver"]["rules"]
    assert found == {"id": "NC999", "name": "r", "shortDescription": {"text": "r"}}


def test_paths_begin_at_the_root_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "top" / "sub dir"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    given = [str(here / "a.py"), "a.py", "../b.py", str(tmp_path / "top" / "c.py"), str(tmp_path / "d.py"), "<stdin>"]
    report = Report(tuple(at(path, 1, "") for path in given))
    outside = f"file://{tmp_path}"
    assert paths(report) == ["a.py", "a.py", "../b.py", f"{outside}/top/c.py", f"{outside}/d.py", "%3Cstdin%3E"]
    (tmp_path / "top" / ".git").touch()  # a file in a work tree of git, else a folder
    assert paths(report) == ["sub%20dir/a.py", "sub%20dir/a.py", "b.py", "c.py", f"{outside}/d.py", "%3Cstdin%3E"]


@pytest.mark.parametrize(
    ("path", "uri"),
    [("C:\\my files\\a.py", "file:///C:/my%20files/a.py"), ("\\\\server\\share\\a.py", "file://server/share/a.py")],
)
def test_a_path_of_windows_is_an_address_of_its_file(path: str, uri: str) -> None:
    assert paths(Report((at(path, 1, ""),))) == [uri]


def test_a_fingerprint_is_of_the_path_the_code_the_text_and_its_place_among_equal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prints(*findings: Finding) -> list[str]:
        return [one["partialFingerprints"]["noclobber/1"] for one in run_of(Report(findings))["results"]]

    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    first = at("sub/a.py", 3, "y.mul_(2)")
    known = prints(first, at("sub/a.py", 9, "    y.mul_(2)"))
    assert len(set(known)) == 2
    assert prints(at("sub/a.py", 7, "y.mul_(2)"), at("sub/a.py", 20, "y.mul_(2)")) == known  # the lines have moved
    for other in (at("a.py", 3, "y.mul_(2)"), at("sub/a.py", 3, "y.mul_(3)"), at("sub/a.py", 3, "y.mul_(2)", "NC208")):
        assert prints(other)[0] not in known
    monkeypatch.chdir(tmp_path / "sub")
    assert prints(at("a.py", 3, "y.mul_(2)"))[0] == known[0]
    assert prints(at(str(tmp_path / "sub" / "a.py"), 3, "y.mul_(2)"))[0] == known[0]


def test_what_does_not_count_is_left_out() -> None:
    run = run_of(Report(suppressed=(Suppressed(at("a.py", 1, ""), "inSource", "known"),)))
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


def ended(report: Report) -> tuple[bool, int | None, list[str]]:
    (one,) = run_of(report)["invocations"]
    said = [note["message"]["text"] for note in one["toolExecutionNotifications"]]
    return one["executionSuccessful"], one.get("exitCode"), said


def test_a_run_that_judged_nothing_does_not_look_right() -> None:
    program = {"argv": ["train.py"], "status": 0, "torch": "2.13.0", "python": "3.11.0"}
    assert ended(Report((at("a.py", 1, ""),), program=program)) == (True, None, [])
    failed = ["the program ended with exit status 3", "no backward ran: nothing was checked"]
    assert ended(Report(program=program | {"status": 3})) == (False, 3, failed)
    right = Report(program=program, coverage=Coverage(contents=True, backwards=12))
    assert ended(right) == (True, None, ["nothing found in 12 backward calls"])
    covered = Coverage(unseen=("sparse tensors",), notes=("new\none",), lost=(Lost("hooks", "not in this release"),))
    never = Report(program=program | {"torch": None}, coverage=covered)
    unseen = ["not watched: sparse tensors", "not watched: hooks: not in this release"]
    said = ["nothing was watched: PyTorch was never imported", *unseen, "new one"]
    assert ended(never) == (True, None, said)
    why = Process("a", None, 1, "", ("train.py",), why="torch 1.9 is too old")
    (told,) = ended(Report(program=program | {"torch": None}, processes=(why,)))[2]
    assert told == "nothing was watched: torch 1.9 is too old"
