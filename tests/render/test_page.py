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


def test_a_page_says_what_was_run() -> None:
    program = {"argv": ["train.py", "<b>", "two words"], "torch": "2.13.0", "python": "3.11.7", "status": 1}
    page = render(Report(program=program), "html")
    title = "noclobber: train.py &#x27;&lt;b&gt;&#x27; &#x27;two words&#x27;"
    assert f"<title>{title}</title>" in page
    assert f"<h1>{title}</h1><div>torch 2.13.0, Python 3.11.7, exit status 1</div>" in page
    assert "<h1>noclobber</h1><div></div>" in render(Report(program={"argv": 3, "torch": None}), "html")


def test_words_may_be_broken_and_windows_may_not() -> None:
    one = replace(awkward.tabs, notes=("a note " * 40,))
    page = render(Report((one,)), "html")
    windows = re.findall(r"<pre class='window'>(.*?)</pre>", page, re.DOTALL)
    words = re.findall(r"<pre class='words'>(.*?)</pre>", page, re.DOTALL)
    assert any("^^^" in part for part in windows)
    assert not any("a note" in part for part in windows)
    assert "a note a note" in "".join(words)
    assert "pre.words { white-space: pre-wrap" in page
    assert page.count("pre-wrap") == 2, "that of the words and that of the headline"


def contrast(color: str, ground: str) -> float:
    """As WCAG 2.2 computes it."""

    def light(one: str) -> float:
        parts = [int(one[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(color), light(ground)))
    return (bright + 0.05) / (dark + 0.05)


def test_the_colours_of_a_dark_page_are_light() -> None:
    page = render(report(), "html")
    dark = re.search(r"prefers-color-scheme: dark\) \{ :root \{ (.*?) \}", page)
    assert dark is not None
    colors = re.findall(r"--(\w+): (#[0-9a-f]{6})", dark[1])
    assert [name for name, _ in colors] == ["red", "amber", "blue", "teal", "green"]
    assert min(contrast(color, "#121212") for _, color in colors) >= 7
    assert "style='color:var(--red);font-weight:bold'" in page
    assert "var(" not in part(report())
