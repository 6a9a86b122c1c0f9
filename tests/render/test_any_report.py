"""What holds for every report, whatever text is in it: it renders, nothing in it acts on a terminal, JSON keeps it."""

from __future__ import annotations

import json
import re
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report, ReportError
from noclobber.render import FORMATS, render, window
from noclobber.render.judged import nothing_found, unchecked
from noclobber.render.text import visible
from noclobber.render.window.fit import fit, lay_out

from .strategies import ANY_TEXT, findings, reports

SGR = re.compile(r"\x1b\[[0-9;]*m")
slower = settings(max_examples=50, deadline=None)


@slower
@given(reports)
def test_json_brings_back_the_same_report(report: Report) -> None:
    text = render(report, "json")
    assert Report.from_json(text) == report
    text.encode("utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


def places(value: object) -> list[tuple[object, object]]:
    """Each container in a document, with each of its keys or indices."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in rows for place in [(value, key), *places(inner)]]


@settings(max_examples=100, deadline=None)
@given(reports, JSON, st.data())
def test_a_damaged_report_is_refused_or_shown(report: Report, put: object, data: st.DataObject) -> None:
    document = json.loads(report.to_json())
    holder, key = data.draw(st.sampled_from(places(document)))
    holder[key] = put  # type: ignore[index]
    try:
        damaged = Report.from_json(json.dumps(document))
    except ReportError:
        return
    for format in FORMATS:
        assert isinstance(render(damaged, format), str)


@pytest.mark.parametrize("format", FORMATS)
@slower
@given(report=reports, width=st.integers(0, 200))
def test_nothing_in_a_report_acts_on_a_terminal(format: str, report: Report, width: int) -> None:
    text = render(report, format, width=width)
    acting = {one for one in text if unicodedata.category(one) in ("Cc", "Cs") or one in "\u202a\u202e\u2028\u2066"}
    if format == "json":  # data, not a page: what JSON may hold unescaped stays
        acting = {one for one in acting if unicodedata.category(one) != "Cf" and one != "\u2028"}
    assert acting <= {"\n"}
    if format == "junit":
        assert ElementTree.fromstring(text.encode()).tag == "testsuites"
    if format in ("sarif", "json"):
        assert json.loads(text)
    assert text == "" or text.endswith("\n")


@slower
@given(reports)
def test_colour_adds_only_colour(report: Report) -> None:
    plain, colored = (render(report, "full", color=color) for color in (False, True))
    assert SGR.sub("", colored) == plain
    assert colored != plain


@pytest.mark.parametrize("format", ["concise", "github"])
@slower
@given(report=reports)
def test_one_line_a_finding(format: str, report: Report) -> None:
    checked = [unchecked(report)] if report.findings else [nothing_found(report)]
    told = [*filter(None, checked), *report.coverage.not_watched, *report.coverage.notes] if format == "github" else []
    assert render(report, format).count("\n") == len(report.findings) + len(told)


@slower
@given(findings)
def test_no_line_of_a_window_ends_in_blanks(finding: Finding) -> None:
    assert not re.search(r"[ \t]$", window(finding), re.MULTILINE)


@slower
@given(ANY_TEXT)
def test_visible_text_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert all(one.isprintable() or one == "\u200d" or unicodedata.category(one)[0] in "ZC" for one in visible(text))


@st.composite
def placed(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A line of characters that are a glyph each, a span in it, and a width."""
    some = draw(st.text(st.sampled_from("ab ()=\t\x1b日🎲é\u202e"), min_size=1, max_size=30))
    line = some * draw(st.integers(1, 12)) + "."
    start = draw(st.integers(0, len(line) - 1))
    return line, start, min(len(line), start + draw(st.integers(1, 40))), draw(st.integers(20, 120))


@slower
@given(placed())
def test_a_caret_stands_under_what_it_is_about(place: tuple[str, int, int, int]) -> None:
    """Walk the shown text cell by cell to the caret: the source of the span begins and ends there."""
    text, start, end, width = place
    line = lay_out(text)
    bounds = line.cells_of(start, end)
    piece = fit(line, *bounds, width)
    assert cell_len(piece.text) <= width
    first, last = piece.cells_of(*bounds)
    expected = visible(text[start:end])
    before = next(index for index in range(len(piece.text) + 1) if cell_len(piece.text[:index]) == first)
    if cell_len(expected) <= width - 2:
        assert piece.text[before:].startswith(expected)
        assert last - first == cell_len(expected)
    else:
        shown = piece.text[before:].rstrip("…")
        assert expected.startswith(shown)
        assert cell_len(shown) >= width - 16


@slower
@example("", -1, -1)
@given(st.text(st.characters(exclude_categories=()), max_size=300), st.integers(-3, 310), st.integers(-3, 310))
def test_any_line_fits(text: str, start: int, end: int) -> None:
    line = lay_out(text)
    piece = fit(line, *line.cells_of(start, end), 60)
    first, last = piece.cells_of(*line.cells_of(start, end))
    assert sum(cell_len(one) for one in piece.text) <= 60
    assert 0 <= first < last <= 61


@pytest.mark.parametrize(
    ("glyph", "width"), [("日", 2), ("e\u0301", 1), ("❤\ufe0f", 2), ("👍🏽", 2), ("👩\u200d💻", 2), ("\t", 4)]
)
def test_characters_that_a_reader_sees_as_one(glyph: str, width: int) -> None:
    line = lay_out(f"{glyph}x")
    last = len(glyph)
    assert line.cells_of(0, last) == (0, width)
    assert line.cells_of(0, 1) == line.cells_of(last - 1, last) == (0, width), "no caret under half a character"
    assert line.cells_of(last, last + 1) == (width, width + 1)
