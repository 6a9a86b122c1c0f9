"""The report as a page: it folds, it filters, it loads nothing, and nothing that a program wrote acts in it."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from noclobber.model.reports.finding import Finding, Severity
from noclobber.model.reports.page import Page
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Report
from noclobber.render import part, render
from noclobber.render.html.page import NARROW

from . import awkward
from .browser import CHROMIUM, shown
from .strategies import findings, reports

EVIL = "</pre><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">'\" \u202e\x1b[31m"
OURS = {"html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "p", "b", "dl", "dt",
        "dd", "table", "thead", "tbody", "tr", "th", "td", "form", "label", "select", "option", "button", "output",
        "div", "details", "summary", "code", "pre", "span", "script"}  # fmt: skip


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


@settings(max_examples=50, deadline=None)
@given(reports)
def test_no_text_of_a_program_becomes_markup(report: Report) -> None:
    page = Elements(render(report, "html"))
    assert set(page.names) <= OURS
    assert page.names.count("script") <= 1
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}
    assert set(Elements(part(report)).names) <= {"pre", "span"}


@settings(max_examples=50, deadline=None)
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


def words(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def test_a_page_begins_with_the_verdict_and_says_what_was_run() -> None:
    program = {"argv": ["train.py", "<b>", "two words"], "torch": "2.13.0", "python": "3.11.7", "status": 1}
    page = render(Report(program={**program, "date": "2026-11-26T12:05:00+01:00", "noclobber": "1.2"}), "html")
    assert "<title>noclobber: train.py &#x27;&lt;b&gt;&#x27; &#x27;two words&#x27;</title>" in page
    head = re.search(r"<header class='none'>(.*?)</header>", page, re.DOTALL)
    assert head
    assert words(head[1]) == (
        "noclobber no backward ran: nothing was checked train.py '<b>' 'two words' "
        "date 2026-11-26 12:05 torch 2.13.0 Python 3.11.7 noclobber 1.2 exit status 1"
    )
    assert "<title>noclobber</title>" in render(Report(program={"argv": 3, "torch": None}), "html")


@pytest.mark.parametrize(
    ("severities", "coverage", "tone"),
    [
        (["hint", "error"], Coverage(backwards=1), "error"),
        (["hint", "warning"], Coverage(backwards=1), "warning"),
        (["hint"], Coverage(backwards=1), "hint"),
        ([], Coverage(backwards=1), "right"),
        ([], Coverage(backwards=1, unseen=("a part",)), "none"),
        ([], Coverage(), "none"),
    ],
)
def test_the_verdict_is_green_only_where_all_was_seen(
    severities: list[Severity], coverage: Coverage, tone: str
) -> None:
    found = tuple(replace(awkward.tabs, severity=one) for one in severities)
    assert f"<header class='{tone}'>" in render(Report(found, coverage), "html")
    if tone == "right":
        assert "<header class='none'>" in render(Report(found, coverage, {"status": 1}), "html"), "the program failed"


def test_a_code_leads_to_the_text_of_its_rule() -> None:
    known = Page("NC101", "stale-save", "error", "NC101 stale-save: a headline\n\nWhy\n    A reason.\n    - a `thing`")
    page = render(replace(report(), pages=(known,)), "html")
    assert page.count("href='#NC101'") == 3, "in the table and at two findings"
    assert "<div id='NC101'><h3>Why</h3><p>A reason.\n</p><ul><li>a <code>thing</code></li></ul></div>" in page
    assert "<span class='code warning'>NC201</span>" in page, "whose page is not known"


def test_a_folded_finding_says_where_and_how_often() -> None:
    one = replace(awkward.tabs, count=3)
    fold = re.search(r"<summary>(.*?)</summary>", render(Report((one,)), "html"))
    assert fold
    assert words(
        fold[1]
    ) == f"{one.code} {one.message} for x in data: y = x.exp(); y.neg_() tabs.py:12 3 times".replace(
        "for x in data: ", ""
    )


def test_a_window_has_a_form_for_narrow_screens() -> None:
    page = render(Report((awkward.three_on_a_line,)), "html")
    narrow = re.search(r"<pre class='window narrow'>(.*?)</pre>", page, re.DOTALL)
    assert narrow
    assert max(map(len, html.unescape(re.sub(r"<[^>]+>", "", narrow[1])).splitlines())) <= NARROW


def contrast(color: str, ground: str) -> float:
    """As WCAG 2.2 computes it."""

    def light(one: str) -> float:
        parts = [int(one[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(color), light(ground)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("ground", ["page", "card"])
def test_all_colours_can_be_read(ground: str) -> None:
    light, dark = re.findall(r":root \{\s+(?:color-scheme: light dark;)?(.*?)\}", render(report(), "html"), re.DOTALL)[
        :2
    ]
    for theme in (light, dark):
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme))
        for name in ("text", "soft", "red", "amber", "blue", "teal", "green"):
            assert contrast(colors[name], colors[ground]) >= 4.5, (name, colors)


def test_a_cell_brings_its_own_font() -> None:
    """An exported notebook has no style sheet for `pre`."""
    made = part(Report((awkward.tabs,)))
    assert made.count("<pre") == made.count("monospace;") == 2
    assert "var(" not in made


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_opens_the_rule_behind_a_code(tmp_path: Path) -> None:
    known = Page("NC101", "stale-save", "error", "NC101 stale-save: a headline\n\nWhy\n    A reason.")
    page = render(replace(report(), pages=(known,)), "html")
    assert not re.search(r"<details[^>]*class=.rule.[^>]* open", page)
    click = "document.querySelector('summary a.code').click()"
    assert re.search(r'<details[^>]*class="rule"[^>]* open', shown(page, tmp_path, click))
