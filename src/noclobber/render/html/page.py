"""The report as a page: it stands alone, folds, filters and prints, in light and dark, on a screen of any width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.page import PROGRAMS, Page
from noclobber.model.reports.report import Report
from noclobber.render.formats.lines import by_code
from noclobber.render.html.kept import kept_for_backward
from noclobber.render.judged import beside, failure
from noclobber.render.markup import painted, prose, sentence, table
from noclobber.render.text import one_line, place_of_line, shown_path, told_command, visible
from noclobber.render.window import layout
from noclobber.render.window.snippet import Row

NARROW = 58
"""Cells of a source window on a telephone: so many fit into 500 pixels."""
MOST_OPEN = 3
"""Findings that are unfolded at first. Of more, a reader wants the list."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Nothing may be loaded, whatever the text of a program holds."""
_HERE = Path(__file__).parent
_CLASSES = {name: f"class='{name}'" for name in ("gutter", "primary", "secondary", "removed", "added")}


def html(report: Report) -> str:
    """Return a page that a browser shows without a network, that a screen reader reads, and that works by keyboard."""
    known = {one.code for one in report.pages}
    findings = "".join(_folding(one, report, known) for one in report.findings)
    found = f"<section id='findings'><h2>Findings</h2>{_filters(report)}{findings}{_next(report)}</section>"
    command = told_command(report.program.get("argv"))
    body = (
        _head(report, command) + _codes(report) + (found if findings else "")
        + (kept_for_backward(report.ledger) if report.ledger is not None else "")
        + _rules(report.pages)
    )  # fmt: skip
    title = f"noclobber: {command}" if command else "noclobber"
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">"
        f"<style>{_read('page.css')}</style>"
    )
    script = f"<script>{_read('page.js')}</script>" if findings else ""
    return f"<!doctype html>\n<html lang='en'><head>{head}</head><body><main>{body}</main>{script}</body></html>\n"


def _read(name: str) -> str:
    return _HERE.joinpath(name).read_text(encoding="utf-8")


def _head(report: Report, command: str) -> str:
    """What was found, of which program, when and with what; then what was not watched, and what else to know."""
    verdict = next((one for one in layout.SEVERITIES if report.count(one)), "none")
    if not report.findings and report.coverage.backwards:
        verdict = "none" if report.coverage.not_watched or failure(report) else "right"
    program = f"<p class='command'><code>{escape(command)}</code></p>" if command else ""
    about = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _about(report))
    notes = ((kind, sentence(text)) for kind, text in beside(report) if kind != "left out")  # which the summary says
    said = "".join(f"<p><b>{kind}</b> {text}</p>" for kind, text in notes)
    return (
        f"<header class='{verdict}'><p class='brand'>noclobber</p><h1>{sentence(layout.summary(report))}</h1>{program}"
        f"<dl>{about}</dl></header>" + (f"<div class='notes'>{said}</div>" if said else "")
    )


def _about(report: Report) -> Iterator[tuple[str, str]]:
    """Yield when the program ran, with which versions, and how it ended, as far as the report says."""
    if isinstance(date := report.program.get("date"), str):
        yield "date", one_line(date.replace("T", " ")[:16])
    names = {"torch": "torch", "python": "Python", "noclobber": "noclobber", "status": "exit status"}
    for key, name in names.items():
        if isinstance(value := report.program.get(key), (str, int)):
            yield name, one_line(str(value))
    if len(report.processes) > 1:
        yield "processes", str(len(report.processes))


def _codes(report: Report) -> str:
    """How many findings of each code there are, and what the code is about."""
    headlines = {one.code: sentence(one.headline) for one in report.pages}
    rows = [
        (
            _code(one, headlines),
            f"<b>{escape(one_line(one.rule))}</b> {headlines.get(one.code, '')}",
            *(str(count), str(files)),
        )
        for one, count, files in by_code(report)
    ]
    heads = {"code": "", "what": "", "findings": "n", "files": "n"}
    return f"<section>{table(heads, rows, look='codes')}</section>" if rows else ""


def _code(finding: Finding, known: Iterable[str]) -> str:
    """A code, which leads to the text of its rule if the page has it."""
    code = escape(visible(finding.code))
    look = f"class='code {escape(finding.severity)}'"
    return f"<a {look} href='#{code}'>{code}</a>" if finding.code in known else f"<span {look}>{code}</span>"


def _filters(report: Report) -> str:
    """What chooses findings by code, file and process, where there is something to choose."""
    choices = {
        "code": dict.fromkeys(visible(one.code) for one in report.findings),
        "file": dict.fromkeys(_file(one) for one in report.findings),
        "process": dict.fromkeys(name for one in report.findings for name in _processes(one, report)),
    }
    fields = []
    for name, values in choices.items():
        if len(values) > 1:
            options = "".join(f"<option value='{escape(one)}'>{escape(one)}</option>" for one in values)
            fields.append(
                f"<label>{name} <select name='{name}'><option value=''>all</option>{options}</select></label>"
            )
    if len(report.findings) > 1:
        fields.append("<button type='button' id='fold'>fold all</button>")
    # Without scripts it can do nothing, and is not shown.
    shown = "<output id='shown' aria-live='polite'></output>"
    return f"<form id='filters' hidden>{''.join(fields)}{shown}</form>" if fields else ""


def _file(finding: Finding) -> str:
    return shown_path(finding.primary.span.path) if finding.primary else ""


def _processes(finding: Finding, report: Report) -> Iterable[str]:
    return [one_line(one.described()) for one in report.processes if one.id in finding.processes]


def _folding(finding: Finding, report: Report, known: Iterable[str]) -> str:
    """A finding, which folds to one line: its code, what it is, the source, the module, the line, how often."""
    primary = finding.primary
    parts = {
        "title": sentence(one_line(finding.message)),
        "source": escape(one_line("".join(primary.source[:1]))) if primary else "",
        "module": escape(one_line(finding.modules[0])) if finding.modules else "",
        "where": escape(place_of_line(primary.span.path, primary.span.line)) if primary else "",
        "times": f"{finding.count} times" if finding.count > 1 else "",
    }
    line = "".join(f"<span class='{name}'>{text}</span>" for name, text in parts.items() if text)
    about = {"code": visible(finding.code), "file": _file(finding), "process": "\n".join(_processes(finding, report))}
    data = "".join(f" data-{name}='{escape(value)}'" for name, value in about.items())
    is_open = " open" * (len(report.findings) <= MOST_OPEN)
    summary = f"<summary>{_code(finding, known)}{line}</summary>"
    return f"<details{is_open}{data} class='{escape(finding.severity)}'>{summary}{_details(finding)}</details>"


def _details(finding: Finding) -> str:
    """The source window in two widths, of which a screen shows one; notes and help, each with what it changes."""
    window, said = layout.parts(finding, None)
    narrow, _ = layout.parts(finding, NARROW)
    windows = "".join(
        f"<pre class='window {kind}'>{painted(rows, _CLASSES)}</pre>"
        for kind, rows in (("wide", window), ("narrow", narrow))
        if rows
    )
    words = "".join(
        f"<dt class='{kind}'>{kind}</dt><dd>{sentence(one_line(text))}{_changes(rows)}</dd>"
        for kind, text, rows in said
    )
    return f"<div class='box'>{windows}{f'<dl>{words}</dl>' if words else ''}</div>"


def _changes(rows: list[Row]) -> str:
    return f"<pre class='window'>{painted(rows[1:], _CLASSES)}</pre>" if rows else ""  # the first one is a bar


def _next(report: Report) -> str:
    found = "".join(
        f"<dt>{what}</dt><dd><code>{escape(command)}</code></dd>" for what, command in layout.commands(report)
    )
    return f"<dl class='next'>{found}</dl>" if found else ""


def _rules(pages: Iterable[Page]) -> str:
    """The text of the rule of each code that was found. A link opens it: it leads to what is inside of the fold."""
    found = ""
    for one in pages:
        title = f"<b>{one.code}</b> {one.name}<span class='title'>{sentence(one.headline)}</span>"
        text = "".join(_part(name, body) for name, body in one.parts())
        found += f"<details class='rule'><summary>{title}</summary><div id='{one.code}'>{text}</div></details>"
    return f"<section id='rules'><h2>Rules</h2>{found}</section>" if found else ""


def _part(name: str, body: str) -> str:
    return f"<h3>{name}</h3>" + (f"<pre class='example'>{escape(body)}</pre>" if name in PROGRAMS else prose(body))
