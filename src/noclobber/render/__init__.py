"""A Report in, a string out, in the formats of FORMATS. To add an output: one file that takes a Report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from noclobber.render.formats.data import json
from noclobber.render.formats.junit import junit
from noclobber.render.formats.lines import concise, github, statistics
from noclobber.render.formats.sarif import sarif
from noclobber.render.formats.terminal import full
from noclobber.render.formats.terminal import window as window
from noclobber.render.html import html
from noclobber.render.html import part as part
from noclobber.render.html import preformatted as preformatted
from noclobber.render.tables.kept import kept as kept
from noclobber.render.tables.ledger import table as table

if TYPE_CHECKING:
    from noclobber.model.reports.report import Report


class Format(Protocol):
    """What a renderer is: every line ends in a newline; no text at all gives the empty string.

    `width` is how many cells a line has; None for a file or a pipe.
    """

    def __call__(self, report: Report, *, color: bool = False, width: int | None = None) -> str: ...


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "full": full,
        "concise": concise,
        "statistics": statistics,
        "github": github,
        "sarif": sarif,
        "junit": junit,
        "json": json,
        "html": html,
    }
)


def render(report: Report, format: str, *, color: bool = False, width: int | None = None) -> str:
    """The report in a format of `FORMATS`. Raises ValueError for a name that is not one."""
    function: Callable[..., str] | None = FORMATS.get(format)
    if function is None:
        raise ValueError(f"unknown format {format!r}; there are {', '.join(FORMATS)}")
    return function(report, color=color, width=width)
