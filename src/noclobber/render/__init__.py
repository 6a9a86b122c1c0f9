"""A Report in, a string out, in the formats of FORMATS. To add an output: one file that takes a Report."""

from __future__ import annotations

from collections.abc import Callable

from noclobber.model.reports.report import Report
from noclobber.render.formats.data import json
from noclobber.render.formats.junit import junit
from noclobber.render.formats.lines import concise, github, statistics
from noclobber.render.formats.sarif import sarif
from noclobber.render.formats.terminal import full
from noclobber.render.formats.terminal import window as window
from noclobber.render.html.cell import part as part
from noclobber.render.html.cell import preformatted as preformatted
from noclobber.render.html.page import html
from noclobber.render.tables.kept import kept as kept
from noclobber.render.tables.ledger import table as table

FORMATS: dict[str, Callable[[Report], str]] = {
    "full": full,
    "concise": concise,
    "statistics": statistics,
    "github": github,
    "sarif": sarif,
    "junit": junit,
    "json": json,
    "html": html,
}
"""By its name, what gives a report as text: every line ends in a newline; no text at all is the empty string."""


def render(report: Report, format: str, *, color: bool = False, width: int | None = None) -> str:
    """Return the report in a format of `FORMATS`.

    `color` and `width`, the cells of a line, are for a terminal, and change "full" alone.
    """
    return full(report, color=color, width=width) if format == "full" else FORMATS[format](report)
