"""What a report suggests: the cheapest candidate, with edits that anybody can apply, and the command that proves it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noclobber.fix import advice
from noclobber.fix.advice import advised
from noclobber.fix.candidates import candidates
from noclobber.fix.patch import Patch
from noclobber.fix.source import Misfit
from noclobber.model.finding import Applicability, Edit, Finding, Suggestion
from noclobber.model.report import Report
from noclobber.model.source import Span
from noclobber.render import render
from tests.fix.breaking import BROKEN, Broken, are_apart, on_disk, taken_by_the_letter

UNPROVEN = Applicability.UNPROVEN


def told(*findings: Finding, words: tuple[str, ...] = ("train.py",)) -> Report:
    return advised(Report(findings, program={"status": 1}), words, contextlib.nullcontext)


def first_that_fits(finding: Finding) -> Patch | None:
    """The file after the candidate that `noclobber fix` would try first."""
    for one in candidates(finding, Patch().read):
        with contextlib.suppress(OSError, Misfit):
            return Patch().edited(one.edits)
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
def test_the_edits_of_the_json_give_the_text_of_the_candidate(
    tmp_path_factory: pytest.TempPathFactory, broken: Broken, end: str, indent: str, head: str, closed: bool
) -> None:
    path = tmp_path_factory.mktemp("program") / "train.py"
    text = head.removeprefix("\ufeff") + broken.source.replace("    ", indent)
    text = text if closed else text.rstrip("\n")
    path.write_bytes((head[:1].strip('#"') + text).replace("\n", end).encode())
    finding = broken.finding(path, text, indent)
    document = json.loads(render(told(finding), "json"))
    offered = [one for one in document["findings"][0]["suggestions"] if one["edits"]]
    patch = first_that_fits(finding)
    assert len(offered) == (patch is not None)
    if patch is not None:
        assert offered[0]["applicability"] == "unproven"
        edits = [read_edit(one) for one in offered[0]["edits"]]
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
    """So that the property above is about something."""
    for name in BROKEN:
        finding = told(made(program, name)).findings[0]
        assert any(one.edits for one in finding.suggestions) == (name != "nothing known"), name


def test_a_candidate_makes_the_words_of_the_rule_exact(program: Path) -> None:
    words = Suggestion("write into a clone (16 B more): `h = h.clone()` before this assignment to `h`")
    other = Suggestion("or do something else")
    exact, rest = told(made(program, suggestions=(words, other))).findings[0].suggestions
    assert exact.message == "write into a clone of `h`"
    assert (exact.applicability, rest) == (UNPROVEN, other)
    assert [(one.span.line, one.span.column, one.replacement) for one in exact.edits] == [(3, 5, "h = h.clone()\n    ")]


def test_a_candidate_that_the_rule_does_not_name_comes_first(program: Path) -> None:
    words = (Suggestion("save a copy of the slice (4 B more)"), Suggestion("or give up"))
    found = told(made(program, suggestions=words)).findings[0].suggestions
    assert [one.message for one in found] == [
        "write into a clone of `h`",
        "or save a copy of the slice (4 B more)",
        "or give up",
    ]
    assert [bool(one.edits) for one in found] == [True, False, False]


def test_an_edit_that_the_rule_knows_appears_once(program: Path) -> None:
    finding = made(program)
    whole = Edit(Span(str(program), 3, 1, 4, 1), "    h = h.clone()\n    h[:, 0] = 1.0\n")
    own = (Suggestion("clone it", (whole,), UNPROVEN), Suggestion("or give up"))
    assert told(replace(finding, suggestions=own)).findings[0].suggestions == own


@pytest.mark.parametrize("place", ["env/lib/python3.11/site-packages/library.py", "link.py"])
def test_a_library_gets_no_edit(program: Path, place: str) -> None:
    library = program.parent / "env/lib/python3.11/site-packages/library.py"
    finding = made(library)
    if place == "link.py":
        (program.parent / place).symlink_to(library)
        finding = BROKEN["parts"].finding(program.parent / place, library.read_text(), "    ")
    edit = Edit(finding.labels[0].span, "h[:, 2]")
    own = Suggestion("write elsewhere", (edit,), UNPROVEN)
    report = told(replace(finding, suggestions=(own,)))
    assert report.findings[0].suggestions == (Suggestion("write elsewhere"),)
    assert "fix" not in report.program


@pytest.mark.parametrize("now", ["# new\n{}", None, "x = 1\n"])
def test_a_file_that_has_changed_since_gets_no_edit(program: Path, now: str | None) -> None:
    finding = made(program)
    if now is None:
        program.unlink()
    else:
        program.write_text(now.format(BROKEN["parts"].source))
    assert not any(one.edits for one in told(finding).findings[0].suggestions)


def test_an_edit_of_a_rule_that_does_not_fit_leaves_its_words(program: Path) -> None:
    bad = Suggestion("do it", (Edit(Span(str(program), 1, 1, 1, 3), "if ("),), UNPROVEN)
    assert told(made(program, "nothing known", suggestions=(bad,))).findings[0].suggestions == (Suggestion("do it"),)


def test_code_that_came_from_no_file_keeps_the_edits_of_its_rule(program: Path) -> None:
    edit = Edit(Span("<string>", 1, 1, 1, 7), "h = h + 1")
    finding = Finding("NC101", "r", "error", "m", (), suggestions=(Suggestion("write", (edit,), UNPROVEN),))
    report = told(finding, words=("-c", "h += 1"))
    assert report.findings == (finding,)
    assert report.program == {"status": 1}


def test_what_goes_wrong_with_one_finding_is_kept_from_the_others(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Finding("NC999", "r", "error", "m", ()), made(program)
    crashes: list[str] = []

    @contextlib.contextmanager
    def apart() -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as crash:
            crashes.append(str(crash))

    def failing(finding: Finding) -> Any:
        return 1 / 0 if finding is bad else found(finding)

    found = advice._candidates
    monkeypatch.setattr(advice, "_candidates", failing)
    report = advised(Report((bad, good)), ["train.py"], apart)
    assert crashes == ["division by zero"]
    assert report.findings[0] is bad
    assert report.findings[1].suggestions[0].edits


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
    assert found == (command and {"command": ["noclobber", "fix", *command], "install": None})


def test_where_nothing_is_suggested_there_is_nothing_to_prove(program: Path) -> None:
    assert "fix" not in told(made(program, "nothing known")).program
    assert told() == Report(program={"status": 1})


def test_without_libcst_the_rules_speak_for_themselves(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    words = (Suggestion("write into a clone: `h = h.clone()`"),)
    report = told(made(program, suggestions=words))
    assert report.findings[0].suggestions == words
    last = render(report, "full").splitlines()[-1]
    assert last == 'mend with proof: pip install "noclobber[fix]" && noclobber fix train.py'


def test_what_cuts_gradients_is_shown_only_where_the_rule_advises_it(program: Path) -> None:
    named = "detach what is carried (`state = tuple(t.detach() for t in state)`)"
    found = [
        told(made(program, "carried", suggestions=(Suggestion(words),))).findings[0].suggestions[0]
        for words in (named, "detach what is carried: `h = h.detach()`", "run the forward again")
    ]
    title = "detach what is carried to the next iteration: "
    code, guess = "state = tuple(t.detach() for t in state)", "state = state.detach()"
    assert [one.message for one in found] == [f"{title}`{code}`", f"{title}`{guess}`", "run the forward again"]
    assert [[edit.replacement.strip() for edit in one.edits] for one in found] == [
        [code],
        [guess],
        [],
    ]


def test_a_graph_is_kept_only_where_the_rule_advises_it(program: Path) -> None:
    source = "a = f(x)\na.sum().backward()\n(a * a).sum().backward()\n"
    program.write_text(source)
    twice = Broken("NC104", source, {"save": "f(x)", "read": "(a * a).sum().backward()"})
    kept = "or keep the graph for the second backward"
    for words, told_now in (("or pass `retain_graph=True` to the first", kept), ("call it once", "call it once")):
        (own,) = told(twice.finding(program, source, "    ", suggestions=(Suggestion(words),))).findings[0].suggestions
        assert own.message == told_now
        assert bool(own.edits) == (told_now == kept)


def test_a_file_that_takes_long_to_parse_is_left_to_the_command(program: Path) -> None:
    finding = made(program)
    with program.open("a") as file:
        file.write("#" * advice.LONGEST)
    report = told(finding)
    assert report.findings == (finding,)
    assert report.program["fix"]["command"] == ["noclobber", "fix", "train.py"]


def test_the_condition_of_a_suggestion_stays(program: Path) -> None:
    words = (Suggestion("do this"), Suggestion("or where nobody else looks, write into a clone: `h = h.clone()`"))
    found = told(made(program, suggestions=words)).findings[0].suggestions
    assert [one.message for one in found] == ["do this", "or where nobody else looks, write into a clone of `h`"]
    assert [bool(one.edits) for one in found] == [False, True]


def test_what_the_rule_says_of_the_cost_stays(program: Path) -> None:
    words = (Suggestion("let `add` write a new tensor, out of place (16 B more): `h + 1`"),)
    (own,) = told(made(program, "add", suggestions=words)).findings[0].suggestions
    assert own.message == "write out of place (16 B more)"
