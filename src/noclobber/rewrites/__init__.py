"""Changes to the source that are sound by construction: a closed list of rewrites, each with its conditions beside it.

A report shows a change only if one of these rewrites fits; the change can then be applied as it stands. The conditions
are decided from the source and from what was observed. In all other cases a report has only words, and `noclobber fix`
runs what it proposes. The changes of a report belong together: if one finding has no change, the report shows none for
the others either, because the program would still be wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from noclobber.model.finding import Edit, Finding, Suggestion
from noclobber.rewrites.copying import copied
from noclobber.rewrites.flags import without_flag
from noclobber.rewrites.guarding import guarded
from noclobber.rewrites.joining import joined
from noclobber.rewrites.keeping import kept_as_clone
from noclobber.rewrites.mapping import made_from_mapped
from noclobber.rewrites.modes import recorded
from noclobber.rewrites.rebinding import rebound
from noclobber.rewrites.returning import returned_new
from noclobber.rewrites.sound import Sound
from noclobber.rewrites.stepping import stepped_later

REWRITES: tuple[Callable[[Finding], Sound | None], ...] = (
    guarded,
    recorded,
    made_from_mapped,
    copied,
    returned_new,
    stepped_later,
    rebound,
    without_flag,
    kept_as_clone,
)
"""The likeliest first."""


def advised(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with changes that are sound, or with words alone."""
    found = [sound(one) for one in findings]
    together = _together([one for one, finding in zip(found, findings, strict=True) if finding.severity == "error"])
    return tuple(_with(finding, one, together) for finding, one in zip(findings, found, strict=True))


def sound(finding: Finding) -> Sound | None:
    """Return the first rewrite that fits a finding, else None. It is None if autograd did not see the write: only the
    author knows whether the write should be part of the gradient."""
    if any(one.get("untracked") for one in finding.writes):
        return None
    return next((one for rewrite in REWRITES if (one := rewrite(finding)) is not None), None)


def _together(found: Sequence[Sound | None]) -> tuple[Edit, ...] | None:
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


def _with(finding: Finding, one: Sound | None, together: tuple[Edit, ...] | None) -> Finding:
    if one is None or together is None:
        return finding
    edits = together if finding.severity == "error" else one.edits
    return replace(finding, suggestions=joined(Suggestion(one.title, edits), finding.suggestions))
