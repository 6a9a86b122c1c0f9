"""What another checkout of the same files has found is at the files of this one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from noclobber.model.reports.checkout import in_checkout
from noclobber.model.reports.finding import Finding, Label
from noclobber.model.reports.report import Report, Suppressed
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Tensor, Write
from noclobber.model.source import Span, told_site

NODE = os.sep + os.path.join("builds", "node", "repository")


def at(path: str, line: int, source: str = "") -> Label:
    return Label("write", Span(path, line, 1, line, 2), "", primary=True, source=(source,))


@pytest.fixture
def here(tmp_path: Path) -> str:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "net.py").write_text("h = x.exp()\nh += 1\n")
    (tmp_path / "train.py").write_text("import net\nnet.step()\n")
    return str(tmp_path)


def paths(found: Finding) -> list[str]:
    return [one.span.path for one in found.labels]


def test_the_same_lines_are_the_same_files(here: str) -> None:
    net, train = os.path.join("src", "net.py"), "train.py"
    call = told_site(Span(os.path.join(NODE, train), 2, 1, 2, 9))
    event = Clobber(Save("", "", Tensor(), 0), (Write("aten::add_", call, calls=(call,)),), Read(""), 0)
    finding = Finding("NC101", "stale-save", "error", "", (at(os.path.join(NODE, net), 2, "h += 1"),)).about(event)
    report = Report((finding,), suppressed=(Suppressed(finding, "external", "ignored"),))
    moved = in_checkout(report, here)
    for one in (moved.findings[0], moved.suppressed[0].finding):
        assert paths(one) == [os.path.join(here, net)]
        assert [site.span().path for site in one.calls] == [os.path.join(here, train)], "no label shows this file"
    assert in_checkout(report, "") is report


@pytest.mark.parametrize(
    "labels",
    [
        [("src/net.py", 2, "h *= 2")],
        [("src/net.py", 2, "h += 1"), ("train.py", 1, "import other")],
        [("src/net.py", 2, "")],
        [("src/gone.py", 2, "h += 1")],
    ],
    ids=["another line", "one line of two", "a line that nobody kept", "a file that is not here"],
)
def test_other_files_stay_where_they_are(here: str, labels: list[tuple[str, int, str]]) -> None:
    there = [(os.path.join(NODE, *path.split("/")), line, text) for path, line, text in labels]
    finding = Finding("NC101", "stale-save", "error", "", tuple(at(*one) for one in there))
    assert in_checkout((finding,), here) == (finding,)


def test_what_is_here_stays_here(here: str) -> None:
    nested = os.path.join(here, "copy")
    os.mkdir(nested)
    label = at(os.path.join(nested, "train.py"), 2, "net.step()")
    finding = Finding("NC101", "stale-save", "error", "", (label,))
    assert in_checkout((finding,), here) == (finding,)
    assert paths(in_checkout((replace(finding),), nested)[0]) == [label.span.path]
