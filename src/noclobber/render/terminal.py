"""The full report for a terminal: the rows of the layout, with colour or without."""

from __future__ import annotations

from noclobber.model.finding import Finding
from noclobber.model.report import Report
from noclobber.render import layout
from noclobber.render.snippet import Row

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
    """Every finding, a blank line after each, then the footer."""
    windows = (window(finding, color=color, width=width) + "\n" for finding in report.findings)
    return "".join(windows) + footer(report, color=color, width=width)


def footer(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """Counts, what was not watched, and the next commands; where nothing was found, what was watched."""
    return "".join(_painted(row, _STYLES if color else {}) for row in layout.footer(report, width))


def window(finding: Finding, *, color: bool = False, width: int | None = None) -> str:
    """One finding. No source line is wider than `width` cells; words are broken there, between words."""
    styles = {**_STYLES, **_SEVERITY, "primary": _SEVERITY.get(finding.severity, _SEVERITY["error"])}
    return "".join(_painted(row, styles if color else {}) for row in layout.rows(finding, width))


def _painted(row: Row, styles: dict[str, str]) -> str:
    """One line of output."""
    while row and not row[-1][1].strip():
        row = row[:-1]
    if not row:
        return "\n"
    row = [*row[:-1], (row[-1][0], row[-1][1].rstrip())]
    return "".join(_colored(text, styles.get(style, "")) for style, text in row) + "\n"


def _colored(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text
