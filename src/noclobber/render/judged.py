"""How far a report judges the program: one that failed, or in which nothing was watched, is not found right."""

from __future__ import annotations

from noclobber.model.report import Report
from noclobber.render.text import one_line


def failed(report: Report) -> int:
    """Return the program's own exit status if it is not 0; 0 if the report does not say. Findings do not change it."""
    status = report.program.get("status")
    return status if isinstance(status, int) else 0


def unwatched(report: Report) -> str:
    """Return why nothing was watched; empty if something was, or if the report does not say."""
    if "torch" not in report.program or report.program["torch"] or any(one.watched for one in report.processes):
        return ""
    why = next((one.why for one in report.processes if one.why), "PyTorch was never imported")
    return f"nothing was watched: {one_line(why)}"
