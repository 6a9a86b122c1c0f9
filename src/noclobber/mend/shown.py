"""The sound changes of the findings of a report, fitted together.

A report shows a change only if a cure says that it is sound; the change can then be applied as it stands. In all other
cases a report has only words, and `noclobber fix` runs what it proposes.

Each finding shows its own change, and with it those of findings of the same write or the same
backward, or whose changes touch the same place. Where the first changes of two findings touch the same place in other
ways, the next ones are taken. If one finding has no change, the report shows none for the others either, because the
program would still be wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, pairwise, product

from noclobber.mend.change import Change
from noclobber.mend.cures import sound
from noclobber.mend.scene import as_it_ran
from noclobber.mend.words import worded
from noclobber.model.reports.finding import Edit, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.source import Span

_Found = tuple[Finding, Change]
_MOST, _MOST_VARIED = 3, 4
"""Changes of one finding that are looked at, and findings that have more than one."""


def advised(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with changes that are sound, or with words alone."""
    return tuple(_with(finding, one) for finding, one in fitted(findings, as_it_ran))


def fitted(findings: Sequence[Finding], read: Callable[[str], str]) -> list[tuple[Finding, Change | None]]:
    """Return each finding with the change that is shown for it: its own, and those that belong with it."""
    errors = [one for one in findings if one.severity == "error"]
    groups = _groups(list(zip(errors, _fitting(errors, read), strict=False)))
    wider = {
        id(finding): replace(one, edits=_together([each for _, each in group]) or ())
        for group in groups
        for finding, one in group
    }
    return [(one, wider.get(id(one)) if one.severity == "error" else next(sound(one, read), None)) for one in findings]


def _fitting(findings: Sequence[Finding], read: Callable[[str], str]) -> Sequence[Change]:
    """Return a change of each finding: the first ones, or where these touch the same place the least that fit together;
    nothing if none do."""
    first = [one for finding in findings if (one := next(sound(finding, read), None)) is not None]
    if len(first) < len(findings):
        return []
    if _together(first) is not None:
        return first
    ways = product(*(islice(sound(one, read), _MOST) for one in findings[:_MOST_VARIED]))
    chosen = ([*way, *first[_MOST_VARIED:]] for way in ways)
    fitting = [(len(edits), way) for way in chosen if (edits := _together(way)) is not None]
    return min(fitting, key=lambda one: one[0], default=(0, []))[1]


def _groups(found: Sequence[_Found]) -> list[list[_Found]]:
    """Return the findings in groups of those that belong together."""
    groups: list[list[_Found]] = []
    for one in found:
        near = [group for group in groups if any(_belong_together(one, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), one])
    return groups


def _belong_together(one: _Found, other: _Found) -> bool:
    """Return True for two findings of one write or one backward, and for two whose changes touch the same place.

    A backward that reads two overwritten saves stays wrong if only one of the writes is changed.
    """
    if not _writes(one[0]).isdisjoint(_writes(other[0])):
        return True
    if (read := _read(one[0])) is not None and read == _read(other[0]):
        return True
    edits, others = (change.edits for _, change in (one, other))
    return any(
        edit.span.path == near.span.path and _ends(edit)[0] <= _ends(near)[1] and _ends(near)[0] <= _ends(edit)[1]
        for edit in edits
        for near in others
    )


def _read(finding: Finding) -> Span | None:
    event = finding.event
    return event.read.site.span() if isinstance(event, Clobber) and event.read.site is not None else None


def _writes(finding: Finding) -> set[Span]:
    return {label.span for label in finding.labels if label.role == "write"}


def _together(found: Sequence[Change]) -> tuple[Edit, ...] | None:
    """Return the edits of some changes, each once; None if two of them touch one place."""
    edits = list(dict.fromkeys(edit for one in found for edit in one.edits))
    spans = sorted((edit.span.path, _ends(edit)) for edit in edits)
    apart = all(
        one[0] != other[0] or one[1][1] < other[1][0] or (one[1][1] == other[1][0] and one[1] != other[1])
        for one, other in pairwise(spans)
    )
    return tuple(edits) if apart else None


def _ends(edit: Edit) -> tuple[tuple[int, int], tuple[int, int]]:
    span = edit.span
    return (span.line, span.column), (span.end_line, span.end_column)


def _with(finding: Finding, one: Change | None) -> Finding:
    said = replace(finding, suggestions=worded(finding))
    if one is None:
        return said
    # The words that say the same go, and what comes next is another way.
    same = next((own for own in said.suggestions if own.cure is one.cure), None)
    others = [own for own in said.suggestions if own is not same]
    if others and not others[0].message.startswith(("or ", "or, ")):
        others[0] = replace(others[0], message=f"or {others[0].message}")
    return replace(finding, suggestions=(Suggestion(one.title, one.edits, one.cure), *others))
