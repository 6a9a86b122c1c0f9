"""The lines that stand beside a report."""

from __future__ import annotations

import os

from noclobber.model.reports.report import Report
from noclobber.model.units import counted
from noclobber.render.judged import beside, nothing_found, verdict
from noclobber.render.text import typed


def counts(report: Report) -> str:
    """Return how many findings there are; where there is none, what was checked."""
    found = [counted(count, word) for word in ("error", "warning", "hint") if (count := report.count(word))]
    return ", ".join(found) or nothing_found(report)


def below(report: Report, format: str) -> list[str]:
    """Return the lines below a report in a format of one line a finding: what was checked, and what it does not say."""
    if format not in ("concise", "statistics"):
        return []
    return [f"noclobber: {said}" for said in (verdict(report),) if said] + notes(report)


def notes(report: Report) -> list[str]:
    """Return what was left out, what was not watched, and the notes, as lines of their own."""
    return [f"noclobber: {kind}: {text}" for kind, text in beside(report)]


def killed(runs: str) -> list[str]:
    """Return a line for each run that was killed and that no command has named yet."""
    from noclobber.processes import leftover

    lines = []
    for folder, command in leftover.killed(runs):
        how = f"an earlier run ended by a signal (`{command}`)"
        lines.append(f"noclobber: {how}; its report: {typed(['noclobber', 'report', folder])}")
    return lines


def crashed(what: str, trace: str) -> list[str]:
    """Return the lines that ask for an issue where noclobber itself failed."""
    text = f"noclobber: internal error: {what} (please open an issue with what this prints under NOCLOBBER_DEBUG=1)"
    return [text, *trace.rstrip().split("\n")] if os.environ.get("NOCLOBBER_DEBUG") else [text]
