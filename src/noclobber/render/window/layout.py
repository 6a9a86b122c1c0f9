"""A report as rows of styled segments: each finding as rustc draws it, and the footer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from noclobber.model.reports.finding import Edit, Finding, Suggestion
from noclobber.model.reports.report import Report
from noclobber.model.seen.events import MOST_CALLS, MOST_MODULES
from noclobber.model.source import cell_of
from noclobber.model.units import counted, listed
from noclobber.render.judged import beside, left_out, nothing_found, unchecked
from noclobber.render.text import APPLYING, FIXING, broken, filled, fix_command, one_line, place_of_line, visible
from noclobber.render.window import diff, snippet
from noclobber.render.window.snippet import Row

WIDTH = 120
"""The cells of a source line if the width of the output is not known. Words are then not broken."""
NARROWEST = 35
"""Cells below which the window would show no source at all."""
SEVERITIES = ("error", "warning", "hint")
"""The worst first."""


def rows(finding: Finding, width: int | None) -> Iterable[Row]:
    """One finding: `error[NC101]: ...`, the source window, notes, help. No source line is wider than `width` cells;
    words are broken there, between words."""
    title = f"{visible(finding.severity)}[{visible(finding.code)}]"
    first, *rest = filled(f"{title}: {one_line(finding.message)}", width)
    yield [(finding.severity, title), ("headline", first.removeprefix(title))]
    yield from ([("headline", line)] for line in rest)
    window, said = parts(finding, width)
    yield from window
    for kind, text, changes in said:
        yield from _words(kind, text, width)
        yield from changes


def worst(findings: Sequence[Finding], most: int) -> Sequence[Finding]:
    """Return at most so many findings, errors first."""
    return findings if len(findings) <= most else sorted(findings, key=lambda one: _rank(one.severity))[:most]


def said_once(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, each without the notes and the help that one of the same code before it has too, and without
    a change that one before it shows.

    Help in words is left out as a whole, as a later sentence may begin with "or". Where no other is left, the help says
    which finding has it.
    """
    noted: set[tuple[str, str]] = set()
    helped: dict[tuple[str, ...], str] = {}
    shown: set[tuple[Edit, ...]] = set()
    for finding in findings:
        words = (finding.code, *(one.message for one in finding.suggestions if not one.edits))
        span = finding.primary.span if finding.primary else None
        here, known = place_of_line(span.path, span.line) if span is not None else "", helped.get(words)
        left = tuple(
            replace(one, message=f"{one.message}: a change above does so", edits=()) if one.edits in shown else one
            for one in finding.suggestions
            if one.edits or known is None
        )
        yield replace(
            finding,
            notes=tuple(one for one in finding.notes if (finding.code, one) not in noted),
            suggestions=left or (Suggestion("as above" if known == here else f"as for {known}"),) * bool(words[1:]),
        )
        shown.update(one.edits for one in finding.suggestions if one.edits)
        noted.update((finding.code, one) for one in finding.notes)
        helped.setdefault(words, here)


def parts(finding: Finding, width: int | None) -> tuple[list[Row], list[tuple[str, str, list[Row]]]]:
    """Return the rows of the source window; then the kind and the text of each note and help, and the rows of what it
    changes."""
    proposed = [(suggestion, diff.changes(suggestion, finding)) for suggestion in finding.suggestions]
    gutter = _gutter(finding, [change for _, changes in proposed for change in changes])
    frame = snippet.Frame(gutter, max(width or WIDTH, NARROWEST + gutter), width is not None)
    path = finding.primary.span.path if finding.primary else None
    said: list[tuple[str, str, list[Row]]] = []
    said += (("note", note, []) for note in (*finding.notes, _scene(finding), finding.seen) if note)
    said += (("help", one.message, [*diff.rows(changes, path, frame)] if changes else []) for one, changes in proposed)
    return snippet.window(finding, frame), said


def _scene(finding: Finding) -> str:
    """Say in which modules the line that writes was seen, whether it did harm there or not, and which calls led to it
    first; empty if neither is known."""
    names = [f"`{name}`" for name in finding.modules]
    if len(names) == MOST_MODULES:
        names[-1] = "others"
    spans = [one.span() for one in finding.calls]
    paths = [None, *(one.path for one in spans)]
    calls = [
        f":{one.line}" if one.path == before else place_of_line(one.path, one.line)
        for before, one in zip(paths, spans, strict=False)
    ]
    if len(calls) > MOST_CALLS:
        calls.insert(1, "...")
    where = [f"seen in the module{'s' * (len(names) > 1)} {listed(names)}"] if names else []
    how = [f"first called by {' > '.join(calls)}"] if len(calls) > 1 else []
    return f"the line that writes was {', '.join(where + how)}" if where + how else ""


def footer(report: Report, width: int | None) -> Iterable[Row]:
    """Counts, what was not watched, and the next commands; where nothing was found, what was watched."""
    rows = [*_words("noclobber", summary(report), width, style="headline")]
    for kind, text in beside(report):
        if kind != "left out":  # which the summary says
            rows += _words(kind, text, width, style="note")
    return [*rows, *([("help", what), ("", f": {command}")] for what, command in commands(report))]


def summary(report: Report) -> str:
    """Return the counts and how many findings were left out; where nothing was found, what was watched."""
    text = _counts(report) if report.findings else nothing_found(report)
    if out := left_out(report):
        text += f" (left out: {out})"
    return f"{text}; {why}" if report.findings and (why := unchecked(report)) else text


def commands(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what to type next, and what for; nothing where nothing was found."""
    if report.findings:
        ranked = sorted(report.findings, key=lambda one: _rank(one.severity))
        codes = dict.fromkeys(visible(finding.code) for finding in ranked)
        yield "next", f"noclobber explain {' '.join(codes)}"
        if command := fix_command(report.program):
            yield (APPLYING if ranked[0].severity == "hint" else FIXING), command


def _gutter(finding: Finding, changes: list[diff.Change]) -> int:
    numbers = [number for label in finding.labels for number in (label.span.line, label.span.end_line)]
    numbers += [number for change in changes for _, number, _ in change.rows() if number]
    return max((len(str(number)) for number in numbers), default=1)


def _words(kind: str, text: str, width: int | None, *, style: str = "") -> Iterable[Row]:
    indent = len(kind) + 2
    first, *rest = [part for line in broken(text) for part in filled(line, width and width - indent, below="")]
    yield [(style or kind, kind), ("", f": {first}")]
    yield from ([("", " " * indent + line)] for line in rest)


def _counts(report: Report) -> str:
    """`2 errors and 1 hint, at 3 lines of 2 files`."""
    found = Counter(finding.severity for finding in report.findings)
    what = listed([counted(found[severity], visible(severity)) for severity in sorted(found, key=_rank)])
    lines = {(label.span.path, label.span.line) for finding in report.findings if (label := finding.primary)}
    paths = {path for path, _ in lines}
    kind = "cell" if all(map(cell_of, paths)) else "file"
    where = f", at {counted(len(lines), 'line')}" if lines else ""
    return what + where + (f" of {len(paths)} {kind}s" if len(paths) > 1 else "")


def _rank(severity: str) -> int:
    """Sort errors first; a severity that only another version knows comes last."""
    return [*SEVERITIES, severity].index(severity)
