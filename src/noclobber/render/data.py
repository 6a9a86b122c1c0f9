"""The report as JSON, safe to write to any file or terminal."""

from __future__ import annotations

import re

from noclobber.model.report import Report

# `Report.to_json` leaves these as they are. A lone surrogate (a file name that is not UTF-8) cannot be written to a
# file, and C1 controls act on some terminals; inside a JSON string an escape means the same.
_UNWRITABLE = re.compile("[\x7f-\x9f\ud800-\udfff]")


def json(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """`noclobber-report/1`, never coloured or cut; `Report.from_json` reads it back."""
    return _UNWRITABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", report.to_json())
