"""Which findings count: codes, comments, baselines, settings; on hand-written findings, without torch."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.report import Coverage, Report
from noclobber.model.source import Span
from noclobber.render.judged import left_out
from noclobber.settings.selection import (
    Selection,
    SelectionError,
    baseline_of,
    codes,
    from_project,
    selected,
    unused,
)


def at(path: str, line: int, source: str, code: str = "NC201") -> Finding:
    made = Label("write", Span(path, line, 1, line, len(source) + 1), "", True, (source,))
    return Finding(code, "silent-write", "error", "silent in-place write", (made,))


def left(report: Report, selection: Selection) -> list[str]:
    return [one.code for one in selected(report, selection).findings]


def test_codes_and_beginnings_of_codes() -> None:
    report = Report(tuple(at("a.py", 1, "", code) for code in ("NC101", "NC201", "NC208", "NC301")))
    assert left(report, Selection()) == ["NC101", "NC201", "NC208", "NC301"]
    assert left(report, Selection(select=("NC2",))) == ["NC201", "NC208"]
    assert left(report, Selection(ignore=("NC208", "NC3"))) == ["NC101", "NC201"]
    assert left(report, Selection(select=("NC2",), ignore=("NC208",))) == ["NC201"]
    hidden = selected(report, Selection(select=("NC2",), ignore=("NC208",))).suppressed
    assert [(one.finding.code, one.kind, one.reason) for one in hidden] == [
        ("NC101", "external", "not selected"),
        ("NC208", "external", "ignored"),
        ("NC301", "external", "not selected"),
    ]


def test_codes_are_read_from_a_text_and_a_list() -> None:
    assert codes("NC101, NC2", "--select") == codes(["NC101", "NC2"], "here") == ("NC101", "NC2")
    assert codes("nc101,untracked-write", "--select") == ("NC101", "NC208")
    for wrong in ("F401", "NC999", "", "untracked", 'N"'):
        with pytest.raises(SelectionError, match=f"--select: '{wrong}' is neither a code such as NC208"):
            codes(wrong, "--select")


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("# noclobber: ignore[NC201] known, see #12", "known, see #12"),
        ("#noclobber:ignore[NC101,NC201]", ""),
        ("# noclobber: ignore[silent-write] by name", "by name"),
        ("# noclobber: ignore[nc2] all of them", "all of them"),
        ("# type: ignore  # noclobber: ignore[NC201]", ""),
    ],
)
def test_a_comment_keeps_its_codes_out(comment: str, reason: str) -> None:
    found = selected(Report((at("a.py", 1, f"h.data.mul_(2)  {comment}"),)), Selection())
    assert found.findings == ()
    assert [(one.kind, one.reason) for one in found.suppressed] == [("inSource", reason)]
    assert Report.from_json(found.to_json()) == found


@pytest.mark.parametrize("comment", ["# noclobber: ignore[NC101]", "# noclobber: ignore", "# ignore[NC201]"])
def test_a_comment_about_something_else_keeps_nothing_out(comment: str) -> None:
    assert left(Report((at("a.py", 1, f"h.data.mul_(2)  {comment}"),)), Selection()) == ["NC201"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("h.data.mul_(2); print('use # noclobber: ignore[NC201] here')", ["NC201"]),
        ("s = '# noclobber: ignore[NC201]'; h.data.mul_(2)  # noclobber: ignore[NC101]", ["NC201"]),
        ("    h.data.mul_(f('#'))  # noclobber: ignore[NC201]", []),
        ("    h.data.mul_(f(  # noclobber: ignore[NC201]", []),
        ('    """))  # noclobber: ignore[NC201]', []),
    ],
)
def test_text_inside_a_string_is_no_comment(line: str, found: list[str]) -> None:
    assert left(Report((at("a.py", 1, line),)), Selection()) == found


def test_comments_that_kept_nothing_out_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "h.data.mul_(2)  # noclobber: ignore[NC201]\n"
        "y = 1  # noclobber: ignore[NC101, NC208] why\n"
        "text = '# noclobber: ignore[NC301]'\n"
    )
    found = selected(Report((at(str(path), 1, path.read_text().splitlines()[0]),)), Selection())
    said = [f"`noclobber: ignore[{code}]` at {path}:2 kept nothing out in this run" for code in ("NC101", "NC208")]
    assert list(unused(found, Selection(), [str(path), str(tmp_path / "missing.py")])) == said
    assert list(unused(found, Selection(ignore=("NC208",)), [str(path)])) == said[:1]


def test_names_and_beginnings_in_comments_are_used_or_told(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "h.data.mul_(2)  # noclobber: ignore[NC2, silent-write]\n"
        "y = 1  # noclobber: ignore[NC2]\n"
        "y = 1  # noclobber: ignore[stale-save]\n"
        "y = 1  # noclobber: ignore[stale]\n"
    )
    found = selected(Report((at(str(path), 1, path.read_text().splitlines()[0]),)), Selection())
    assert list(unused(found, Selection(), [str(path)])) == [
        f"`noclobber: ignore[NC2]` at {path}:2 kept nothing out in this run",
        f"`noclobber: ignore[stale-save]` at {path}:3 kept nothing out in this run",
        f"`# noclobber: ignore[stale]` at {path}:4: there is no rule stale",
    ]
    assert len(list(unused(found, Selection(ignore=("NC2",)), [str(path)]))) == 2


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# noclobber: ignore", "is not understood; write `# noclobber: ignore[NC208] reason`"),
        ("# noclobber: ignroe[NC201]", "is not understood; write `# noclobber: ignore[NC208] reason`"),
        ("# noclobber: ignore[NC999]", "there is no rule NC999"),
        ("# noclobber: ignore[]", "there is no rule ``"),
    ],
)
def test_comments_that_say_nothing_are_told(comment: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"y = 1  {comment}\n# see noclobber for why\n")
    told = unused(Report(), Selection(), [str(tmp_path / "a.py")])
    assert len(told) == 1
    assert told[0].startswith(f"`{comment}` at ")
    assert told[0].endswith(said)


def test_a_baseline_knows_a_line_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    source, baseline = str(tmp_path / "a.py"), str(tmp_path / "baseline.json")
    old = Report((at(source, 3, "h.data.mul_(2)"), at(source, 9, "h.data.mul_(2)")))
    text, words = baseline_of(old, Selection(baseline=baseline))
    assert words == "2 findings: 2 new, 0 taken out"
    Path(baseline).write_text(text)
    assert json.loads(Path(baseline).read_text())["findings"] == [
        {"code": "NC201", "path": "a.py", "source": "h.data.mul_(2)", "count": 2}
    ]
    moved = Report((at(source, 5, "    h.data.mul_(2)"), at(source, 11, "h.data.mul_(2)")))
    found = selected(moved, Selection(baseline=baseline))
    assert (found.findings, len(found.suppressed), found.coverage.notes) == ((), 2, ())
    again = (Path(baseline).read_text(), "2 findings: 0 new, 0 taken out")
    assert baseline_of(found, Selection(baseline=baseline)) == again
    more = replace(
        moved, findings=(*moved.findings, at(source, 20, "h.data.mul_(2)"), at(source, 21, "h.data.add_(1)"))
    )
    assert len(selected(more, Selection(baseline=baseline)).findings) == 2
    fewer = selected(Report(coverage=Coverage()), Selection(baseline=baseline))
    assert fewer.coverage.notes == ("2 findings of the baseline did not show up; `--update-baseline` takes them out",)


def test_a_baseline_keeps_what_is_not_selected(tmp_path: Path) -> None:
    source, baseline = str(tmp_path / "a.py"), str(tmp_path / "baseline.json")
    one, other, new = at(source, 3, "h.mul_(2)", "NC101"), at(source, 9, "h.data.mul_(2)"), at(source, 12, "h += 1")
    Path(baseline).write_text(baseline_of(Report((one, other)), Selection(baseline=baseline))[0])
    only = Selection(ignore=("NC101",), baseline=baseline)
    found = selected(Report((one, new)), only)
    assert found.coverage.notes == ("1 finding of the baseline did not show up; `--update-baseline` takes it out",)
    text, words = baseline_of(selected(Report((one, new)), replace(only, baseline="")), only)
    assert words == "2 findings: 1 new, 1 taken out"
    Path(baseline).write_text(text)
    assert [(one["code"], one["source"]) for one in json.loads(Path(baseline).read_text())["findings"]] == [
        ("NC101", "h.mul_(2)"),
        ("NC201", "h += 1"),
    ]
    assert selected(Report((one, new)), only).coverage.notes == ()


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("a.py", {"a.py", "old/a.py", "old/deep/a.py"}),
        ("old/*", {"old/a.py", "old/b.py", "old/deep/a.py"}),
        ("old/**/a.py", {"old/a.py", "old/deep/a.py"}),
        ("**/b.py", {"b.py", "old/b.py"}),
        ("!old/*", {"a.py", "b.py"}),
        ("ol", set()),
    ],
)
def test_codes_are_ignored_by_file(pattern: str, files: set[str], tmp_path: Path) -> None:
    # the expected files are what ruff's per-file-ignores leaves out (ruff 0.15)
    paths = ("a.py", "b.py", "old/a.py", "old/b.py", "old/deep/a.py")
    report = Report(tuple(at(str(tmp_path / path), 1, "h += 1", code) for path in paths for code in ("NC101", "NC201")))
    found = selected(report, Selection(per_file={pattern: ("NC2",)}, root=os.path.realpath(tmp_path)))
    out = {os.path.relpath(one.finding.primary.span.path, tmp_path) for one in found.suppressed}
    assert out == files
    assert {(one.finding.code, one.reason) for one in found.suppressed} <= {("NC201", "ignored in their file")}
    assert left_out(found) == (f"{len(files)} ignored in their file" if files else "")


@pytest.mark.parametrize("text", ["[]", "{", '{"format": "other", "findings": []}', "[" * 100_000])
def test_a_baseline_that_cannot_be_used(text: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with pytest.raises(SelectionError, match=r"there is no baseline `.*`; `noclobber run --update-baseline` makes it"):
        selected(Report(), Selection(baseline=str(path)))
    path.write_text(text)
    with pytest.raises(SelectionError, match=r"`.*` is not a baseline that `--update-baseline` has written"):
        selected(Report(), Selection(baseline=str(path)))


def test_the_nearest_project_says_what_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.noclobber]\nselect = ["NC1"]\nignore = ["NC105"]\nbaseline = "known.json"\n'
        'fail-on = "warning"\nper-file-ignores = { "old/*" = ["untracked-write"] }\n'
    )
    (tmp_path / "below").mkdir()
    per_file, root = {"old/*": ("NC208",)}, os.path.realpath(tmp_path)
    expected = Selection(("NC1",), ("NC105",), str(tmp_path / "known.json"), per_file, root, "warning")
    assert from_project(str(tmp_path / "below")) == from_project(str(tmp_path)) == expected
    (tmp_path / "below" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert from_project(str(tmp_path / "below")) == Selection(root=os.path.realpath(tmp_path / "below"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[tool.noclobber]\nselekt = []",
            "`selekt` is unknown; there are select, ignore, per-file-ignores, baseline, fail-on",
        ),
        ("[tool.noclobber]\nselect = 'NC1'", "`select` is not a list"),
        ("[tool.noclobber]\nbaseline = 3", "`baseline` is not text"),
        ("[tool.noclobber]\nignore = ['x']", "'x' is neither a code such as NC208"),
        ("[tool.noclobber]\nfail-on = 'hint'", "`fail-on` is 'hint'; there are error, warning, never"),
        ("[tool.noclobber]\nper-file-ignores = ['NC1']", "`per-file-ignores` is not a table"),
        ("[tool.noclobber.per-file-ignores]\n'a.py' = 'NC1'", "`per-file-ignores` of 'a.py' is not a list"),
        ("[tool]\nnoclobber = 3", "it is not a table"),
        ("[tool", "cannot read"),
    ],
)
def test_settings_that_cannot_be_used(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SelectionError, match=said):
        from_project(str(tmp_path))
