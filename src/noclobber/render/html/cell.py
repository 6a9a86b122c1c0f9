"""The report in the output of a notebook's cell: no scripts, and all styles inline, as a notebook may be exported."""

from __future__ import annotations

from html import escape

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report
from noclobber.render.markup import painted
from noclobber.render.tables.ledger import table
from noclobber.render.window import layout

_PRE = (
    "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px;"
    "line-height:1.35;white-space:pre;overflow-x:auto"
)
"""An exported notebook need not say that `pre` has the fixed width that carets need."""
_RED, _AMBER, _BLUE, _TEAL, _GREEN = "#d3302f", "#a86400", "#3b78c9", "#0a857c", "#2e8540"
"""They can be read on white and on black: a notebook does not say which it has."""
_BOLD = "font-weight:bold"
_SEVERITY = {"error": f"color:{_RED};{_BOLD}", "warning": f"color:{_AMBER};{_BOLD}", "hint": f"color:{_TEAL};{_BOLD}"}
_STYLES = {
    **_SEVERITY,
    "headline": _BOLD,
    "gutter": f"color:{_BLUE}",
    "secondary": f"color:{_BLUE}",
    "note": _BOLD,
    "help": f"color:{_TEAL};{_BOLD}",
    "removed": f"color:{_RED}",
    "added": f"color:{_GREEN}",
}


def part(report: Report) -> str:
    """Return the findings and the footer, then the ledger if there is one."""
    parts = [painted(layout.rows(one, None), _looks(one)) for one in report.findings]
    parts.append(painted(layout.footer(report, None), _looks()))
    if report.ledger is not None:
        parts.append(escape(table(report.ledger)))
    return "".join(map(_fixed, parts))


def preformatted(text: str) -> str:
    """Return a text with the lines that it has."""
    return _fixed(escape(text))


def _fixed(lines: str) -> str:
    return f'<pre style="{_PRE}">{lines}</pre>'


def _looks(finding: Finding | None = None) -> dict[str, str]:
    """Return the inline style of each style of a row; the primary label looks as severe as its finding."""
    primary = _SEVERITY.get(finding.severity if finding else "", _SEVERITY["error"])
    return {name: f"style='{look}'" for name, look in {**_STYLES, "primary": primary}.items()}
