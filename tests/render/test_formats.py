"""Facts of single formats: the example of the design, paths, escaping, diffs, what is said of nothing found."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noclobber.model.reports.finding import Edit, Finding, Label, Suggestion
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Report
from noclobber.model.source import Span
from noclobber.render import FORMATS, render, window
from noclobber.render.formats.terminal import footer
from noclobber.render.judged import nothing_found

from . import awkward
from .catalogue import stale_save
from .source import File, advice, finding, stale

DESIGN = """\
error[NC101]: in-place write to a tensor that backward still needs
  --> train.py:8:1
   |
 7 | h = torch.sigmoid(w(x))
   |     ------------------- `h` is saved here: sigmoid keeps its result (version 0)
 8 | h += x.detach()
   | ^^^^^^^^^^^^^^^ `add_` overwrites it here (version 0 -> 1)
...
12 | loss.backward()
   | --------------- backward reads it here, in SigmoidBackward0
   |
note: d sigmoid(x)/dx = y (1 - y), so autograd keeps y; the input of sigmoid is not kept and may be overwritten
help: write out of place (16 B more)
   |
 8 - h += x.detach()
 8 + h = h + x.detach()
"""


def test_the_example_of_the_design() -> None:
    assert window(stale_save) == DESIGN


def test_formats_by_name() -> None:
    assert list(FORMATS) == ["full", "concise", "statistics", "github", "sarif", "junit", "json", "html"]


def test_a_path_below_the_current_directory_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(path: str) -> str:
        return render(Report((stale(File(path, {1: "y.neg_()"}).write(1, "y.neg_()", "")),)), "concise").split(":1:1:")[
            0
        ]

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shown(str(tmp_path / "work" / "sub" / "a.py")) == "sub/a.py"
    assert shown(str(tmp_path / "works.py")) == str(tmp_path / "works.py")
    assert shown("a.py") == "a.py"
    monkeypatch.chdir("/")
    assert shown("/srv/a.py") == "/srv/a.py"


def test_source_is_read_only_where_the_label_kept_none(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("now = 1\n")
    span = Span(str(path), 1, 1, 1, 4)
    assert "1 | now = 1\n" in window(stale(Label("write", span, "", True)))
    kept = window(stale(Label("write", span, "", True, ("was = 1",))))
    assert "1 | was = 1\n" in kept
    assert "now" not in kept


def one_edit(*edits: Edit, lines: dict[int, str]) -> str:
    file = File("a.py", lines)
    labels = [file.label("write", number, text, "") for number, text in lines.items()]
    return window(stale(*labels, suggestions=advice("do it", *edits))).split("help: ")[1]


def test_a_diff_shows_only_changed_lines() -> None:
    lines = {1: "a = (1,", 2: "     2)", 3: "b = 3"}
    assert one_edit(Edit(Span("a.py", 1, 5, 3, 2), "(1,\n     4)\nc"), lines=lines) == (
        "do it\n  |\n  -      2)\n  - b = 3\n2 +      4)\n3 + c = 3\n"
    )
    assert one_edit(Edit(Span("a.py", 2, 1, 3, 1), ""), lines=lines) == "do it\n  |\n2 -      2)\n"
    assert one_edit(Edit(Span("a.py", 3, 1, 3, 1), "n = 1\n"), lines=lines) == "do it\n  |\n3 + n = 1\n"
    far = (Edit(Span("a.py", 1, 1, 1, 2), "x"), Edit(Span("a.py", 3, 1, 3, 2), "x"))
    assert one_edit(*far, lines=lines) == "do it\n  |\n1 - a = (1,\n1 + x = (1,\n...\n3 - b = 3\n3 + x = 3\n"


@pytest.mark.parametrize(
    "edits",
    [
        (Edit(Span("gone.py", 1, 1, 1, 3), "x"),),
        (Edit(Span("a.py", 1, 5, 1, 40), "x"),),
        (Edit(Span("a.py", 1, 5, 1, 2), "x"),),
        (Edit(Span("a.py", 1, 1, 1, 4), "x"), Edit(Span("a.py", 1, 3, 1, 5), "y")),
        (Edit(Span("a.py", 1, 1, 10**12, 1), ""),),
    ],
    ids=["missing file", "past the end", "backwards", "overlapping", "endless"],
)
def test_an_edit_that_cannot_be_applied_leaves_the_words(edits: tuple[Edit, ...]) -> None:
    assert one_edit(*edits, lines={1: "a = 1"}) == "do it\n"


def test_github_escapes() -> None:
    one = finding("NC1", "r", "50% of\r\nit", File("a,b:c%.py", {1: "y"}).write(1, "y", "text"), notes=("x\ny",))
    assert render(Report((one,)), "github") == (
        "::error file=a%2Cb%3Ac%25.py,line=1,endLine=1,col=1,endColumn=2,title=noclobber NC1 [r]"
        "::50%25 of it%0Aa,b:c%.py:1:1: written: text%0Anote: x%0Anote: y\n".replace("c%.py:1", "c%25.py:1")
    )


@pytest.mark.parametrize(("format", "file"), [("github", "file={},"), ("junit", 'file="{}"')])
def test_paths_of_files_begin_at_the_root_of_the_repository(
    format: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "sub"
    here.mkdir()
    monkeypatch.chdir(here)
    one = finding("NC1", "r", "m", File(str(here / "a.py"), {1: "y"}).write(1, "y", "text"))
    assert file.format("a.py") in render(Report((one,)), format)
    (tmp_path / ".git").mkdir()
    assert file.format("sub/a.py") in render(Report((one,)), format)


@pytest.mark.parametrize(("severity", "level"), [("error", "error"), ("warning", "warning"), ("hint", "notice")])
def test_github_levels(severity: str, level: str) -> None:
    one = Finding("NC1", "r", severity, "m", ())  # type: ignore[arg-type]
    assert render(Report((one,)), "github") == f"::{level} title=noclobber NC1 [r]::m\n"


def test_nothing_found_says_how_much_that_covers_and_never_clean() -> None:
    unseen = ("a region compiled by Inductor", "sparse tensors")
    text = render(Report(coverage=Coverage("dispatch key", unseen=unseen, backwards=1)), "full")
    first, *others = text.splitlines()
    assert first == "noclobber: nothing found in what was watched (1 backward call)"
    assert others == [f"not watched: {one}" for one in unseen]
    assert "clean" not in text
    by_versions = footer(Report(coverage=Coverage(backwards=1)))
    assert by_versions == "noclobber: nothing found in 1 backward call: versions were compared, but not bytes\n"
    assert render(Report(), "concise") == ""
    assert render(Report(), "github") == "::notice title=noclobber::no backward ran: nothing was checked\n"


PROGRAM = {"argv": ["train.py"], "status": 0, "torch": "2.13.0", "python": "3.11.0"}


@pytest.mark.parametrize(
    ("covered", "ended", "said"),
    [
        ({"backwards": 1200}, {}, "nothing found in 1,200 backward calls"),
        ({"backwards": 3}, {"status": 1}, "nothing found in 3 backward calls, until the program failed"),
        ({"backwards": 3}, {"status": 130}, "nothing found in 3 backward calls, until the program was interrupted"),
        ({"backwards": 3, "raised": 1}, {}, "nothing found in 3 backward calls; 1 more raised an error"),
        ({"backwards": 3, "raised": 1}, {"status": 1}, "nothing found in 3 backward calls, until the program failed"),
        ({}, {}, "no backward ran: nothing was checked"),
        ({}, {"status": 3}, "no backward ran: nothing was checked"),
        ({"raised": 1}, {"status": 1}, "no backward ran to its end: nothing was checked"),
        ({"unseen": ("graphs",)}, {}, "in what was watched, no backward ran: nothing was checked"),
        ({"saves": False}, {}, "only writes were watched: nothing was checked"),
    ],
)
def test_nothing_found_says_what_was_checked(covered: dict[str, Any], ended: dict[str, int], said: str) -> None:
    assert nothing_found(Report(coverage=Coverage(contents=True, **covered), program=PROGRAM | ended)) == said


def test_the_processes_that_were_checked_are_counted() -> None:
    ends = ["ended", "running"]
    two = tuple(Process(str(one), "p", one, "", (), torch="2.13.0", state=ends[one]) for one in (0, 1))  # type: ignore[arg-type]
    ran = Report(coverage=Coverage(contents=True, backwards=4), program=PROGRAM, processes=two)
    assert nothing_found(ran) == "nothing found in at least 4 backward calls of 2 processes"
    killed = replace(two[0], parent=None, state="lost")
    assert nothing_found(replace(ran, processes=(killed,))) == (
        "nothing found in at least 4 backward calls, until the program was killed"
    )
    other = replace(two[0], torch=None, why="not there")
    assert nothing_found(replace(ran, processes=(two[0], other))) == (
        "nothing found in what was watched (4 backward calls, 1 of 2 processes)"
    )


def test_a_warning_without_a_backward_says_so() -> None:
    warned = Report((Finding("NC208", "r", "warning", "m", ()),), program=PROGRAM)
    assert footer(warned).startswith("noclobber: 1 warning; no backward ran\n")
    assert footer(replace(warned, coverage=Coverage(backwards=1))).startswith("noclobber: 1 warning\n")


def test_the_footer_names_the_worst_first() -> None:
    hint, error = (Finding(code, "r", severity, "m", ()) for code, severity in (("NC901", "hint"), ("NC301", "error")))  # type: ignore[arg-type]
    assert footer(Report((hint, error))) == "noclobber: 1 error and 1 hint\nnext: noclobber explain NC301 NC901\n"


def test_a_long_diff_is_cut_in_an_annotation() -> None:
    file = File("a.py", {1: "y += 1"})
    lines = "\n".join(f"y = {number}" for number in range(20))
    one = stale(file.write(1, "y += 1", ""), suggestions=advice("do it", file.edit(1, "y += 1", lines)))
    text = render(Report((one,)), "github")
    assert text.endswith("%0A7 + y = 6%0A... 13 more\n")


def fixing(*words: str) -> Report:
    file = File("a.py", {1: "y += 1"})
    one = stale(file.write(1, "y += 1", ""), suggestions=advice("do it", file.edit(1, "y += 1", "y = y + 1")))
    return Report((one,), program={"fix": {"command": ["noclobber", "fix", *words]}})


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "--lr", "0.1"),
        ("-m", "pkg.train", "a b", "it's", "$HOME", "*", "", "~", "日本"),
        ("my train.py", "a\nb", "\x1b[31m", "\\", "'", "\t'\\", "\x9b", "\udcff", "\u202e"),
    ],
)
def test_the_command_gives_a_shell_the_words_as_they_were(words: tuple[str, ...]) -> None:
    report = fixing(*words)
    for text in (footer(report), render(report, "github").replace("%0A", "\n").replace("%25", "%")):
        line = text.rstrip("\n").split("\n")[-1]
        assert line.isprintable()
        command = line.removeprefix("to fix this: noclobber fix ")
        assert command != line
        printed = subprocess.run(["bash", "-c", rf"printf '%s\0' {command}"], capture_output=True, check=True).stdout
        assert printed == b"".join(os.fsencode(word) + b"\0" for word in words)


@pytest.mark.parametrize("fix", [None, "x", [], {"command": "x"}, {"command": [1]}, {}])
def test_a_report_that_names_no_command_has_none(fix: object) -> None:
    report = Report((stale_save,), program={"fix": fix})
    assert footer(report) == footer(Report((stale_save,)))


@pytest.mark.parametrize(
    ("path", "uri"), [("/x/a\udcff.py", "file:///x/a%FF.py"), ("a\ud800 é.py", "a%3F%20%C3%A9.py")]
)
def test_a_place_in_sarif_has_the_bytes_of_the_name(path: str, uri: str) -> None:
    label = replace(awkward.tabs.labels[0], span=replace(awkward.tabs.labels[0].span, path=path), primary=True)
    document = json.loads(render(Report((replace(awkward.tabs, labels=(label,)),)), "sarif"))
    (location,) = document["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_what_is_the_same_is_said_once_a_code() -> None:
    file = File("a.py", {1: "h += 1", 2: "g += 1", 3: "k.mul_(2)"})
    words = ("run the forward again", "or detach it")
    first, second = (
        stale(
            file.write(line, file.lines[line], "here"),
            notes=("why", f"of {line}"),
            suggestions=advice(words[0]) + advice(words[1]),
        )
        for line in (1, 2)
    )
    other = replace(first, code="NC201")
    text = render(Report((first, second, other)), "full")
    assert [text.count(one) for one in ("why", *words, "of 1", "of 2")] == [2, 2, 2, 2, 1]
    assert text.count("help: as for a.py:1\n") == 1
    assert render(Report((first, replace(first, notes=()))), "full").count("help: as above\n") == 1
    changed = replace(second, suggestions=second.suggestions[:1] + advice("or drop it"))
    assert render(Report((first, changed)), "full").count(words[0]) == 2


def test_a_change_that_two_findings_have_is_shown_once() -> None:
    file = File("a.py", {1: "h += 1", 2: "g += 1"})
    both = (file.edit(1, "h += 1", "h = h + 1"), file.edit(2, "g += 1", "g = g + 1"))
    found = [
        stale(
            file.write(line, file.lines[line], "here"),
            file.save(3 - line, file.lines[3 - line], "there"),
            suggestions=(Suggestion(f"bind anew in {line}", both),),
        )
        for line in file.lines
    ]
    text = render(Report(tuple(found)), "full")
    assert text.count("h = h + 1") == 1
    assert "help: bind anew in 2: a change above does so\n" in text


def test_a_terminal_shows_the_worst_twenty() -> None:
    file = File("a.py", {number: f"h{number} += 1" for number in range(1, 44)})
    found = [finding("NC208", "untracked-write", "a warning", file.write(1, "h1 += 1", "here"), severity="warning")]
    found += [stale(file.write(number, text, "here")) for number, text in file.lines.items() if number > 1]
    shown = render(Report(tuple(found)), "full", width=100)
    assert (shown.count("error[NC101]"), shown.count("warning[NC208]")) == (20, 0)
    assert "\nand 23 more: `-f html -o report.html` shows all\n\nnoclobber: 42 errors and 1 warning" in shown
    assert render(Report(tuple(found)), "full").count("error[NC101]") == 42
    assert render(Report(tuple(found)), "statistics").splitlines() == [
        "42  NC101  stale-save       1 file",
        " 1  NC208  untracked-write  1 file",
    ]
    assert render(Report(), "statistics") == ""


def test_the_numbers_of_a_change_go_up() -> None:
    file = File("a.py", {number: f"line{number}" for number in range(1, 10)})
    for edits, expected in (
        ([file.edit(3, "line3", "three")], ["3 - line3", "3 + three"]),
        (
            [file.edit(2, "line2\n", "new\nline2\n"), file.edit(3, "line3", "three")],
            ["2 + new", "3 - line3", "4 + three"],
        ),
        (
            [file.edit(2, "line2\n", ""), file.edit(5, "line5", "five\nsix")],
            ["2 - line2", "- line5", "4 + five", "5 + six"],
        ),
        ([file.edit(7, "line7\nline8", "with:\n  7\n  8")], ["- line7", "- line8", "7 + with:", "8 +   7", "9 +   8"]),
    ):
        made = stale(
            file.write(1, "line1", "here"),
            *(file.read(n, f"line{n}") for n in range(2, 10)),
            suggestions=advice("do", *edits),
        )
        rows = [row.strip() for row in render(Report((made,)), "full").partition("help: do")[2].splitlines()]
        assert [row for row in rows if re.match(r"(\d+ )?[-+] ", row)] == expected
