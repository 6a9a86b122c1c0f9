"""The report as JSON, safe to write to any file or terminal."""

from __future__ import annotations

import re
from json import dumps

from noclobber.model.reports.report import Report
from noclobber.render.text import visible_character

# `Report.to_json` leaves characters that act on a terminal as they are, and lone surrogates (a file name that is not
# UTF-8), which cannot be written to a file; inside a JSON string an escape means the same.
_OTHERS = re.compile("[^\n -~]")


def json(report: Report) -> str:
    """`noclobber-report/1`; `Report.from_json` reads it back."""
    return _OTHERS.sub(_spelled, report.to_json())


def _spelled(found: re.Match[str]) -> str:
    return found[0] if visible_character(found[0]) == found[0] else dumps(found[0])[1:-1]
