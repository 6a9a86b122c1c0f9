"""The sound changes of the findings of a report, fitted together.

A report shows a change only if a cure says that it is sound; the change can then be applied as it stands. In all other
cases a report has only words, and `noclobber fix` runs what it proposes.

Each finding shows its own change, and with it those of findings of the same write or the same
backward, or whose changes touch the same place. If one finding has no change, the report shows none for the others
either, because the program would still be wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from noclobber.mend.change import Change
from noclobber.mend.cures import sound
from noclobber.mend.scene import as_it_ran
from noclobber.mend.words import worded
from noclobber.model.reports.finding import Edit, Finding, Suggestion
from noclobber.model.seen.clobber import Clobber
from noclobber.model.source import Span

_Found = tuple[Finding, Change | None]


def advised(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with changes that are sound, or with words alone."""
    return tuple(_with(finding, one) for finding, one in fitted(findings, as_it_ran))


def fitted(findings: Sequence[Finding], read: Callable[[str], str]) -> list[_Found]:
    """Return each finding with the change that is shown for it: its own, and those that belong with it."""
    found = [(finding, sound(finding, read)) for finding in findings]
    errors = [(finding, one) for finding, one in found if finding.severity == "error"]
    groups = _groups(errors) if _together([one for _, one in errors]) is not None else []
    together = {id(finding): _together([one for _, one in group]) for group in groups for finding, _ in group}
    return [
        (finding, one if finding.severity != "error" or one is None else _wider(one, together.get(id(finding))))
        for finding, one in found
    ]


def _wider(one: Change, edits: tuple[Edit, ...] | None) -> Change | None:
    return None if edits is None else replace(one, edits=edits)


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
    edits, others = ((sound.edits if sound is not None else ()) for _, sound in (one, other))
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


def _together(found: Sequence[Change | None]) -> tuple[Edit, ...] | None:
    """Return the edits of all findings, each once; None if a finding has none, or if two edits touch one place."""
    edits = list(dict.fromkeys(edit for one in found if one is not None for edit in one.edits))
    spans = sorted((edit.span.path, _ends(edit)) for edit in edits)
    apart = all(
        one[0] != other[0] or one[1][1] < other[1][0] or (one[1][1] == other[1][0] and one[1] != other[1])
        for one, other in pairwise(spans)
    )
    return tuple(edits) if None not in found and apart else None


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
