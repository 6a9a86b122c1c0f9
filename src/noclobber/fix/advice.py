"""Fits the suggestions of a report to the files, and adds the command that finds and proves other changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from noclobber.fix.edits.patch import Patch
from noclobber.fix.edits.source import Misfit, Source
from noclobber.fix.one_rank import is_torchrun
from noclobber.mend.scene import is_of_intent
from noclobber.model.finding import Edit, Finding, Label, Suggestion
from noclobber.model.hints import Opportunity
from noclobber.model.report import Report
from noclobber.model.source import Owner, owner_of
from noclobber.syntax.tree import LONGEST

MOST = 20
"""Findings for which a candidate is looked for. A report of more is read from its start."""
Apart = Callable[[], AbstractContextManager[None]]


def advised(report: Report, words: Sequence[str], apart: Apart) -> Report:
    """Return the report with edits that can be applied as they stand, and with the command that proves others.

    Nothing is run. `words` is the program as `python` would be given it. Each finding is handled inside an `apart()`,
    so that an error there does not reach the report.
    """
    findings, can_fix, can_apply = list(report.findings), False, False
    run_by_fix = _run_by_fix(report, words)
    for number, finding in enumerate(findings):
        if finding.severity == "hint":
            can_apply |= isinstance(finding.event, Opportunity) and finding.event.alone > 0
            continue
        with apart():
            reached = not finding.processes or not run_by_fix.isdisjoint(finding.processes)
            findings[number], found = _advised(finding, number < MOST and not can_fix and reached)
            can_fix |= found and reached
    told = replace(report, findings=tuple(findings))
    if words[0] in ("-", "-c") or not (can_fix or can_apply):
        return told
    script = ["--", *words] if words[0].startswith("-") and words[0] != "-m" else words
    return replace(
        told,
        program={
            **report.program,
            "fix": {"command": ["noclobber", "fix", *([] if can_fix else ["--hints"]), *script]},
        },
    )


def _run_by_fix(report: Report, words: Sequence[str]) -> set[str]:
    """Return the ids of the processes whose part `noclobber fix` runs: the first one, and rank 0 of torchrun."""
    ranks = is_torchrun(words)
    return {one.id for one in report.processes if one.parent is None or (ranks and one.rank == 0)}


def _advised(finding: Finding, ask: bool) -> tuple[Finding, bool]:
    """A finding with edits that fit the files as they are, and whether there is anything for `noclobber fix` to try."""
    is_current = all(map(_is_current, finding.labels))
    own = tuple(_fitting(one, is_current) for one in finding.suggestions)
    long = is_current and any(_is_long(one.span.path) for one in finding.labels)
    can_fix = long or any(one.edits for one in own) or (ask and is_current and _has_candidate(finding))
    return replace(finding, suggestions=own), can_fix


def _is_current(label: Label) -> bool:
    """Whether the file still has the lines that the label points into. Code that came from no file cannot change."""
    span = label.span
    if span.path.startswith("<") or not any(label.source):
        return True
    try:
        lines = Source.read(span.path).plain.split("\n")
    except (OSError, ValueError):
        return False
    return tuple(lines[span.line - 1 : span.end_line]) == label.source


def _fitting(suggestion: Suggestion, is_current: bool) -> Suggestion:
    """A rule's suggestion with its edits made exact; words alone where they do not fit, or are for a library."""
    if all(one.span.path.startswith("<") for one in suggestion.edits):
        return suggestion
    try:
        if is_current:
            return replace(suggestion, edits=_exact(suggestion.edits, _patch(suggestion.edits)))
    except (OSError, Misfit):
        pass
    return replace(suggestion, edits=())


def _has_candidate(finding: Finding) -> bool:
    """Whether there is a change that fits the files."""
    from noclobber.mend.cures import candidates, readings

    found = readings if is_of_intent(finding) else candidates
    for one in found(finding, _text):
        with suppress(OSError, Misfit):
            _patch(one.edits)
            return True
    return False


def _text(path: str) -> str:
    """The text of a file of the user's own, with plain line ends. Raises OSError."""
    if not _is_ours(path):
        raise PermissionError(f"`{path}` is not to be edited")
    if _is_long(path):
        raise OSError(f"`{path}` is too long to be parsed")
    try:
        return Source.read(path).plain
    except Misfit as reason:
        raise OSError(str(reason)) from None


def _is_long(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > LONGEST


def _is_ours(path: str) -> bool:
    return owner_of(path) is Owner.USER and owner_of(os.path.realpath(path)) is Owner.USER


def _patch(edits: Sequence[Edit]) -> Patch:
    """What edits make of the files. Raises OSError, and Misfit also where they are for a library."""
    if not all(_is_ours(one.span.path) for one in edits):
        raise Misfit("the edits are for a library")
    return Patch().edited(edits)


def _exact(edits: Sequence[Edit], patch: Patch) -> tuple[Edit, ...]:
    """Return the exact edits that give a patch."""
    files = patch.before.items()
    by_file = [(source, [one for one in edits if os.path.realpath(one.span.path) == path]) for path, source in files]
    return tuple(edit for source, some in by_file for edit in source.exact(some))
