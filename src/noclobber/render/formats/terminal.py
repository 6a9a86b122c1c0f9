"""The full report for a terminal: the rows of the layout, with colour or without."""

from __future__ import annotations

import re

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report
from noclobber.render.tables.ledger import table
from noclobber.render.window import layout
from noclobber.render.window.snippet import Row

MOST = 20
"""Findings that a terminal shows: beyond this a reader needs a page to look through."""
_SEVERITY = {"error": "1;31", "warning": "1;33", "hint": "1;36"}
_STYLES = {
    "headline": "1",
    "gutter": "1;34",
    "secondary": "1;34",
    "note": "1",
    "help": "1;36",
    "removed": "31",
    "added": "32",
}
"""As terminals number them: 1 is bold, 31 red, 32 green, 33 yellow, 34 blue, 36 cyan. `rich.style` draws from Python's
global random numbers when it is imported, and the program may be about to (rich 15; tests/cli/test_generators.py)."""


def full(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """Every finding with its source window, then the footer, and the ledger if there is one. On a terminal, the worst
    `MOST` findings."""
    findings = report.findings if width is None else layout.worst(report.findings, MOST)
    windows = (window(finding, color=color, width=width) + "\n" for finding in layout.said_once(findings))
    more, styles = len(report.findings) - len(findings), _STYLES if color else {}
    rest = _painted([("headline", f"and {more} more"), ("", ": `-f html -o report.html` shows all")], styles) + "\n"
    kept = f"\n{table(report.ledger, width)}" if report.ledger is not None else ""
    return "".join(windows) + rest * (more > 0) + footer(report, color=color, width=width) + kept


def footer(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """Counts, what was not watched, and the next commands; where nothing was found, what was watched."""
    return "".join(_painted(row, _STYLES if color else {}) for row in layout.footer(report, width))


def window(finding: Finding, *, color: bool = False, width: int | None = None) -> str:
    """One finding. No source line is wider than `width` cells; words are broken there, between words."""
    styles = {**_STYLES, **_SEVERITY, "primary": _SEVERITY.get(finding.severity, _SEVERITY["error"])}
    return "".join(_painted(row, styles if color else {}) for row in layout.rows(finding, width))


def summary_line(line: str, severity: str, *, color: bool) -> str:
    """Return a line of the summary of `fix`; `severity` is that of the code that it begins with, if it does."""
    said = _SAID.match(line)
    if said is None or not color:
        return line
    style = _SEVERITY.get(severity) or _STYLES.get(_STYLE_OF.get(said[2], ""), "")
    return f"{said[1]}{_colored(said[2], style)}{line[said.end() :]}"


_SAID = re.compile(r"( *)(NC\d+|[a-z]+)(?=[:, ])")
_STYLE_OF = {
    "noclobber": "headline", "next": "help", "fix": "help", "change": "help", "help": "help",
    "proven": "added", "checked": "added", "withdrawn": "removed",
}  # fmt: skip


def patch_line(line: str, *, color: bool) -> str:
    """Return a line of a patch."""
    style = next((style for begin, style in _PATCH if line.startswith(begin)), "")
    return _colored(line, _STYLES.get(style, "") if color else "")


_PATCH = (("---", "headline"), ("+++", "headline"), ("@@", "gutter"), ("-", "removed"), ("+", "added"))


def _painted(row: Row, styles: dict[str, str]) -> str:
    while row and not row[-1][1].strip():
        row = row[:-1]
    last = [(style, text.rstrip()) for style, text in row[-1:]]
    return "".join(_colored(text, styles.get(style, "")) for style, text in [*row[:-1], *last]) + "\n"


def _colored(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text
