"""The report as a page: it folds, it filters, it loads nothing, and nothing that a program wrote acts in it."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from noclobber.model.finding import Finding
from noclobber.model.process import Process
from noclobber.model.report import Coverage, Report
from noclobber.render import part, render

from . import awkward
from .browser import CHROMIUM, shown
from .strategies import findings, reports

EVIL = "</pre><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">'\" \u202e\x1b[31m"
OURS = {"html", "head", "meta", "title", "style", "body", "main", "h1", "form", "label", "select", "option", "button",
        "output", "div", "details", "summary", "code", "pre", "span", "script"}  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page, and the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}


@settings(max_examples=150, deadline=None)
@given(reports)
def test_no_text_of_a_program_becomes_markup(report: Report) -> None:
    page = Elements(render(report, "html"))
    assert set(page.names) <= OURS
    assert page.names.count("script") <= 1
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}
    assert set(Elements(part(report)).names) <= {"pre", "span"}


@settings(max_examples=100, deadline=None)
@given(findings)
def test_a_page_says_what_the_terminal_says(finding: Finding) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", "", part(Report((finding,)))))
    assert text.split() == render(Report((finding,)), "full").split()


def evil() -> Finding:
    (first, *others) = awkward.tabs.labels
    span = replace(first.span, path=EVIL)
    labels = (replace(first, text=EVIL, span=span, source=(EVIL,)), *others)
    return replace(awkward.tabs, message=EVIL, notes=(EVIL,), labels=labels, code=EVIL)


def report() -> Report:
    """Three findings with two codes in three files; two processes, of which one saw one of them."""
    processes = (Process("a", None, 1, "host", (), rank=0), Process("b", None, 2, "host", (), rank=1))
    several = (
        replace(awkward.tabs, code="NC101", processes=("a", "b")),
        replace(awkward.crlf, code="NC101", processes=("a",)),
        replace(awkward.three_on_a_line, code="NC201", severity="warning", processes=("b",)),
    )
    return Report(several, Coverage("dispatch key", True), processes=processes)


def titles(dom: str) -> list[tuple[str, bool]]:
    """The file of each finding that is shown, and whether it is unfolded."""
    tags = re.findall(r"<details[^>]*>", dom)
    return [
        (found[1], " open" in tag)
        for tag in tags
        if " hidden" not in tag and (found := re.search(r'data-file="([^"]*)"', tag))
    ]


CHOOSE = "const at = document.querySelector('[name={}]'); at.value = '{}'; at.dispatchEvent(new Event('change'));"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize(
    ("act", "left"),
    [
        ("", [("tabs.py", True), ("crlf.py", True), ("one.py", True)]),
        (CHOOSE.format("code", "NC101"), [("tabs.py", True), ("crlf.py", True)]),
        (CHOOSE.format("file", "one.py"), [("one.py", True)]),
        (CHOOSE.format("process", "rank 1"), [("tabs.py", True), ("one.py", True)]),
        ("document.getElementById('fold').click()", [("tabs.py", False), ("crlf.py", False), ("one.py", False)]),
        (
            "document.getElementById('fold').click(); dispatchEvent(new Event('beforeprint'))",
            [("tabs.py", True), ("crlf.py", True), ("one.py", True)],
        ),
    ],
)
def test_a_browser_filters_and_folds(tmp_path: Path, act: str, left: list[tuple[str, bool]]) -> None:
    dom = shown(render(report(), "html"), tmp_path, act)
    assert titles(dom) == left
    if len(left) < 3:
        assert f"{len(left)} of 3 shown</output>" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_runs_nothing_of_a_hostile_program(tmp_path: Path) -> None:
    dom = shown(render(Report((evil(),)), "html"), tmp_path)
    assert "<title>noclobber</title>" in dom
    assert "<img" not in dom
