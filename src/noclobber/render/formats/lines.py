"""One line a finding: concise (for people and editors) and github (workflow annotations); statistics, one a code."""

from __future__ import annotations

from collections.abc import Iterator

from noclobber.model.reports.finding import Finding, Label, Suggestion
from noclobber.model.reports.report import Report
from noclobber.model.units import counted
from noclobber.render.judged import beside, verdict
from noclobber.render.text import (
    FIXING,
    broken,
    fix_command,
    from_root,
    one_line,
    place,
    repository,
    shown_path,
    table_of,
    visible,
)
from noclobber.render.window.diff import changes

MOST_ROWS = 8
"""Lines of a diff in an annotation, which is shown between the lines of a pull request."""
_TOLD = {"save": "saved", "write": "written", "read": "read", "create": "created", "inside": "inside"}
_LEVEL = {"error": "error", "warning": "warning", "hint": "notice"}


def concise(report: Report) -> str:
    """`train.py:8:1: NC101 [stale-save] headline (saved train.py:7:5, read train.py:12:1)`."""
    return "".join(f"{_concise(finding)}\n" for finding in report.findings)


def _concise(finding: Finding) -> str:
    primary = finding.primary
    where = f"{place(primary.span)}: " if primary else ""
    others = [f"{_role(one)} {place(one.span)}" for one in finding.labels if one is not primary]
    if finding.count > 1:
        others.append(f"seen {finding.count} times")
    told = f" ({', '.join(others)})" if others else ""
    return f"{where}{visible(finding.code)} [{visible(finding.rule)}] {one_line(finding.message)}{told}"


def statistics(report: Report) -> str:
    """`12  NC101  stale-save  3 files`: how many findings of each code there are, the most first, and their files."""
    rows = [
        (str(count), visible(one.code), visible(one.rule), counted(files, "file"))
        for one, count, files in by_code(report)
    ]
    return "".join(f"{line}\n" for line in table_of(rows, right=1))


def by_code(report: Report) -> list[tuple[Finding, int, int]]:
    """Return a finding of each code, how many there are, and in how many files; the most first."""
    found: dict[str, list[Finding]] = {}
    for one in report.findings:
        found.setdefault(one.code, []).append(one)
    counts = [
        (same[0], len(same), len({one.primary.span.path for one in same if one.primary})) for same in found.values()
    ]
    return sorted(counts, key=lambda one: -one[1])


def github(report: Report) -> str:
    """`::error file=train.py,line=8,...::text`: GitHub shows each at its line of a pull request, if the file's path
    begins at the root of the repository. Then how much was checked, if nothing was found, what was not watched, and the
    notes."""
    command = fix_command(report.program)
    root = repository()
    lines = [_annotation(finding, command, root) for finding in report.findings]
    said = verdict(report)
    notices = [said] if said else []
    notices += [text if kind == "note" else f"{kind}: {text}" for kind, text in beside(report)]
    lines += [f"::notice title=noclobber::{_escaped(one)}" for one in notices]
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding, command: str, root: str) -> str:
    properties: dict[str, object] = {}
    if finding.primary:
        span = finding.primary.span
        file = visible(from_root(span.path, root))
        properties = {"file": file, "line": span.line, "endLine": max(span.line, span.end_line)}
        if span.end_line <= span.line:  # GitHub refuses columns that are on different lines
            properties |= {"col": span.column, "endColumn": span.end_column}
    properties["title"] = f"noclobber {visible(finding.code)} [{visible(finding.rule)}]"
    text = [one_line(finding.message)]
    text += [f"{place(one.span)}: {_role(one)}: {one_line(one.text)}" for one in finding.labels]
    text += [f"note: {line}" for note in finding.notes for line in broken(note)]
    if finding.seen:
        text.append(f"note: {one_line(finding.seen)}")
    for suggestion in finding.suggestions:
        rows = list(_diff(suggestion, finding))
        text.append(f"help: {one_line(suggestion.message)}")
        text += rows[:MOST_ROWS]
        if len(rows) > MOST_ROWS:
            text.append(f"... {len(rows) - MOST_ROWS} more")
    if command and any(suggestion.edits for suggestion in finding.suggestions):
        text.append(f"{FIXING}: {command}")
    told = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{_LEVEL.get(finding.severity, 'error')} {told}::{'%0A'.join(map(_escaped, text))}"


def _diff(suggestion: Suggestion, finding: Finding) -> Iterator[str]:
    """The lines that edits take away and put there: `31 - out += x`; the file's name where it is another."""
    path = finding.primary.span.path if finding.primary else None
    for change in changes(suggestion, finding):
        where = "" if change.path == path else f"{shown_path(change.path)}:"
        for sign, number, text in change.rows():
            yield f"{where}{f'{number} ' if number else ''}{sign} {visible(text)}"


def _role(label: Label) -> str:
    return _TOLD.get(label.role) or visible(label.role)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
