"""What a report suggests: edits that anybody can apply as they stand, and the command that finds and proves others."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noclobber.cli.verbs.run import with_command
from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit
from noclobber.mend.cures import candidates
from noclobber.model.reports.finding import Edit, Finding, Suggestion
from noclobber.model.reports.report import Report
from noclobber.model.source import Span
from noclobber.render import render
from tests.fix.breaking import BROKEN, Broken, are_apart, on_disk, taken_by_the_letter


def told(*findings: Finding, words: tuple[str, ...] = ("train.py",)) -> Report:
    return with_command(Report(findings, program={"status": 1}), list(words), [])


def first_that_fits(finding: Finding) -> tuple[Suggestion, Patch] | None:
    """The candidate that `noclobber fix` would try first, and the file after it."""
    for one in candidates(finding, Patch().read):
        with contextlib.suppress(OSError, Misfit):
            return Suggestion(one.title, one.edits), Patch().edited(one.edits)
    return None


def read_edit(data: dict[str, Any]) -> Edit:
    span = Span(data["path"], data["line"], data["column"], data["end_line"], data["end_column"])
    return Edit(span, data["replacement"])


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@settings(max_examples=12, deadline=None)
@given(
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    indent=st.sampled_from(["    ", "\t", "  "]),
    head=st.sampled_from(["", "\ufeff", "# 日本語 𝄞\n\n", '"""One\nfile."""\n']),
    closed=st.booleans(),
)
def test_the_edits_of_the_json_give_the_text_when_they_are_taken_by_the_letter(
    tmp_path_factory: pytest.TempPathFactory, broken: Broken, end: str, indent: str, head: str, closed: bool
) -> None:
    path = tmp_path_factory.mktemp("program") / "train.py"
    text = head.removeprefix("\ufeff") + broken.source.replace("    ", indent)
    text = text if closed else text.rstrip("\n")
    path.write_bytes((head[:1].strip('#"') + text).replace("\n", end).encode())
    finding = broken.finding(path, text, indent)
    found = first_that_fits(finding)
    if found is not None:
        change, patch = found
        document = json.loads(render(told(replace(finding, suggestions=(change,))), "json"))
        (offered,) = document["findings"][0]["suggestions"]
        assert offered["applicability"] == "sound"
        edits = [read_edit(one) for one in offered["edits"]]
        assert are_apart(edits)
        assert taken_by_the_letter(on_disk(path), edits) == patch.after[str(path.resolve())].text


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def made(path: Path, name: str = "parts", **more: Any) -> Finding:
    broken = BROKEN[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(broken.source)
    return broken.finding(path, broken.source, "    ", **more)


def test_every_source_but_the_last_has_a_candidate(program: Path) -> None:
    """So that the property above is about something; the last one is a hint, for which no command is named."""
    for name in BROKEN:
        finding = made(program, name)
        assert (first_that_fits(finding) is not None) == (name != "nothing known"), name
        assert ("fix" in told(finding).program) == (name != "nothing known"), name


@pytest.mark.parametrize("place", ["env/lib/python3.11/site-packages/library.py", "link.py"])
def test_a_library_gets_no_edit(program: Path, place: str) -> None:
    library = program.parent / "env/lib/python3.11/site-packages/library.py"
    finding = made(library)
    if place == "link.py":
        (program.parent / place).symlink_to(library)
        finding = BROKEN["parts"].finding(program.parent / place, library.read_text(), "    ")
    edit = Edit(finding.labels[0].span, "h[:, 2]")
    own = Suggestion("write elsewhere", (edit,))
    report = told(replace(finding, suggestions=(own,)))
    assert report.findings[0].suggestions == (Suggestion("write elsewhere"),)
    assert "fix" not in report.program


@pytest.mark.parametrize("now", ["# new\n{}", None, "x = 1\n"])
def test_a_file_that_has_changed_since_gets_no_edit(program: Path, now: str | None) -> None:
    edit = Edit(Span(str(program), 3, 1, 4, 1), "    h = h.clone()\n    h[:, 0] = 1.0\n")
    finding = made(program, suggestions=(Suggestion("clone it", (edit,)),))
    if now is None:
        program.unlink()
    else:
        program.write_text(now.format(BROKEN["parts"].source))
    assert told(finding).findings[0].suggestions == (Suggestion("clone it"),)


def test_an_edit_of_a_rule_that_does_not_fit_leaves_its_words(program: Path) -> None:
    bad = Suggestion("do it", (Edit(Span(str(program), 1, 1, 1, 3), "if ("),))
    assert told(made(program, suggestions=(bad,))).findings[0].suggestions == (Suggestion("do it"),)


def test_code_that_came_from_no_file_keeps_the_edits_of_its_rule(program: Path) -> None:
    edit = Edit(Span("<string>", 1, 1, 1, 7), "h = h + 1")
    finding = Finding("NC101", "r", "error", "m", (), suggestions=(Suggestion("write", (edit,)),))
    report = told(finding, words=("-c", "h += 1"))
    assert report.findings == (finding,)
    assert report.program == {"status": 1}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["-m", "pkg.train", "a b"], ["-m", "pkg.train", "a b"]),
        (["-x.py"], ["--", "-x.py"]),
        (["-c", "x"], None),
        (["-"], None),
    ],
)
def test_the_command_has_the_arguments_as_they_were_given(
    program: Path, words: list[str], command: list[str] | None
) -> None:
    found = told(made(program), words=tuple(words)).program.get("fix")
    assert found == (command and {"command": ["noclobber", "fix", *command]})


def test_without_a_finding_there_is_nothing_to_fix() -> None:
    assert told() == Report(program={"status": 1})
