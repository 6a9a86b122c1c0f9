"""How far a report judges the program. "Nothing found" says what was checked; where nothing was, nothing is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from noclobber.model.reports.report import Report
from noclobber.render.text import one_line

_INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells count it."""


def failure(report: Report) -> str:
    """Return how the program ended, if not well; empty if it did, or if the report does not say."""
    if _was_killed(report):
        return "the program was killed"
    return f"the program ended with exit status {status}" if (status := failed(report)) else ""


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


def unchecked(report: Report) -> str:
    """Return why no gradient was checked, though the program was watched; empty if one was, or an error was found.

    Of a report with warnings or hints only, that is asked if the report says what was watched.
    """
    coverage = report.coverage
    if coverage.backwards or report.count("error") or unwatched(report) or not _is_watched(report):
        return ""
    if report.findings and "torch" not in report.program:
        return ""
    where = "in what was watched, " if _is_in_part(report) else ""
    why = f"no backward ran{' to its end' if coverage.raised else ''}" if coverage.saves else "only writes were watched"
    return f"{where}{why}{'' if report.findings else ': nothing was checked'}"


def nothing_found(report: Report) -> str:
    """Say in how much nothing was found. How noclobber watches is in the JSON and in `noclobber doctor`."""
    if not _is_watched(report):
        return "nothing found, because nothing was watched"
    if why := unchecked(report):
        return why
    coverage, watched = report.coverage, [one for one in report.processes if one.watched]
    calls = calls_in_words(coverage.backwards, exactly=all(one.state == "ended" for one in watched))
    if _is_in_part(report):
        counted = sum(one.counts for one in report.processes)
        of = "" if len(watched) == counted else f"{len(watched)} of "
        processes = f", {of}{counted} processes" if counted > 1 else ""
        return f"nothing found in what was watched ({calls}{processes}){_until(report)}"
    processes = f" of {len(watched)} processes" if len(watched) > 1 else ""
    found = f"nothing found{' that counts' if report.suppressed else ''} in {calls}{processes}{_until(report)}"
    if coverage.raised and not failure(report):
        found += f"; {coverage.raised:,} more raised an error"
    if coverage.fake:
        return f"{found}, in a run without values"
    return found if coverage.contents else f"{found}: versions were compared, but not bytes"


def verdict(report: Report) -> str:
    """Return what was checked, where the findings do not say it; empty where they do."""
    return unchecked(report) if report.findings else nothing_found(report)


def beside(report: Report) -> list[tuple[str, str]]:
    """Return what a reader must know beside the findings: its kind, and a line each."""
    left = [("left out", out)] if (out := left_out(report)) else []
    missed = [("not watched", one_line(one)) for one in report.coverage.not_watched]
    return left + missed + [("note", one_line(one)) for one in report.coverage.notes]


def left_out(report: Report) -> str:
    """Return how many findings do not count, and why: "2 in the baseline, 1 by comment"; empty if all count."""
    return in_words(why_left_out(report))


def why_left_out(report: Report) -> Counter[str]:
    """Return how many findings do not count, by why."""
    return Counter("by comment" if one.kind == "inSource" else one.reason for one in report.suppressed)


def in_words(left_out: Mapping[str, int]) -> str:
    """Return what `why_left_out` has counted as words."""
    return ", ".join(f"{count} {one_line(reason)}" for reason, count in left_out.items())


def calls_in_words(backwards: int, *, exactly: bool = True) -> str:
    """Return a number of backward calls in words."""
    return f"{'' if exactly else 'at least '}{backwards:,} backward call{'' if backwards == 1 else 's'}"


def _is_watched(report: Report) -> bool:
    coverage, counted = report.coverage, [one for one in report.processes if one.counts]
    sees = coverage.saves or coverage.writes not in ("", "nothing")
    return sees and (not counted or any(one.watched for one in counted))


def _is_in_part(report: Report) -> bool:
    return bool(report.coverage.not_watched) or not all(one.watched for one in report.processes if one.counts)


def _until(report: Report) -> str:
    if _was_killed(report):
        return ", until the program was killed"
    if status := failed(report):
        return f", until the program {'was interrupted' if status == _INTERRUPTED else 'failed'}"
    return ""


def _was_killed(report: Report) -> bool:
    return any(one.parent is None and one.watched and one.state == "lost" for one in report.processes)
