"""What a report suggests: for each finding the change that `noclobber fix` would try first, and the command for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from noclobber.fix.candidate import OF_INTENT, Candidate
from noclobber.fix.joining import joined
from noclobber.fix.patch import Patch
from noclobber.fix.source import Misfit, Source
from noclobber.model.finding import Applicability, Edit, Finding, Label, Suggestion
from noclobber.model.report import Report
from noclobber.model.source import Owner, owner_of

MOST = 20
"""Findings that get a candidate. A report of more is read from its start."""
LONGEST = 50_000
"""Bytes of a file that is parsed for a candidate: at this length it takes about a second."""
Apart = Callable[[], AbstractContextManager[None]]


def advised(report: Report, words: Sequence[str], apart: Apart) -> Report:
    """The report with unproven changes to the source in its suggestions, and in `program` the command that proves them.

    Nothing is run. `words` is the program as `python` would be given it. Each finding is worked on inside an `apart()`,
    which keeps from the report what goes wrong there.
    """
    findings, can_mend = list(report.findings), False
    has_libcst = bool(findings) and _has_libcst()
    for number, finding in enumerate(findings):
        with apart():
            findings[number], found = _advised(finding, has_libcst and number < MOST)
            can_mend |= found
    told = replace(report, findings=tuple(findings))
    if words[0] in ("-", "-c") or not findings or (has_libcst and not can_mend):
        return told
    script = ["--", *words] if words[0].startswith("-") and words[0] != "-m" else words
    fix = {"command": ["noclobber", "fix", *script], "install": None if has_libcst else "noclobber[fix]"}
    return replace(told, program={**report.program, "fix": fix})


def _has_libcst() -> bool:
    try:
        import libcst  # noqa: F401
    except ImportError:
        return False
    return True


def _advised(finding: Finding, has_libcst: bool) -> tuple[Finding, bool]:
    """A finding with edits that fit the files as they are, and whether there is anything for `noclobber fix` to try."""
    is_current = all(map(_is_current, finding.labels))
    own = tuple(_fitting(one, is_current) for one in finding.suggestions)
    if finding.code in OF_INTENT:
        return replace(finding, suggestions=own), has_libcst
    known = [_after(one.edits) for one in own if one.edits]
    can_mend, has_cut = bool(known) or (is_current and any(_is_long(one.span.path) for one in finding.labels)), False
    for candidate, patch in _candidates(finding) if has_libcst and is_current else ():
        if patch.key() in known:
            break
        if _is_harmless(patch, own, has_cut=has_cut):
            own = joined(replace(candidate, edits=_exact(candidate.edits, patch)), own)
            return replace(finding, suggestions=own), True
        can_mend, has_cut = True, has_cut or _added(patch, "detach(") > 0
    return replace(finding, suggestions=own), can_mend


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
    return replace(suggestion, edits=(), applicability=Applicability.WORDS)


def _candidates(finding: Finding) -> Iterator[tuple[Candidate, Patch]]:
    """The candidates whose edits fit, the cheapest first, and what they make of the files.

    What is to be detached the rule may know, as it has seen the tensors: what holds its code comes first.
    """
    from noclobber.fix.candidates import candidates

    codes = [
        code for one in finding.suggestions[:1] for code in re.findall("`([^`]* = [^`]*detach[^`]*)`", one.message)
    ]
    found = candidates(finding, _text)
    for one in sorted(found, key=lambda one: not any(code in edit.replacement for code in codes for edit in one.edits)):
        with suppress(OSError, Misfit):
            yield one, _patch(one.edits)


def _is_harmless(patch: Patch, own: Sequence[Suggestion], *, has_cut: bool) -> bool:
    """Whether a patch may be shown before it is proven. What cuts gradients, or keeps a graph, may be no cure.

    Then the rule must advise just that, and one name be cut, by the first candidate that does so: it `has_cut` already
    where that was another.
    """
    if _added(patch, "retain_graph=True") > 0:
        return any("pass `retain_graph=True`" in one.message for one in own)
    cuts = _added(patch, "detach(")
    return cuts <= 0 or (cuts == 1 and not has_cut and bool(re.search(r"\bdetach", own[0].message if own else "")))


def _added(patch: Patch, words: str) -> int:
    """How often some words stand in the files more than they did."""
    return sum(after.text.count(words) - patch.before[path].text.count(words) for path, after in patch.after.items())


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
    """The edits that give a patch when they are taken by the letter."""
    files = patch.before.items()
    by_file = [(source, [one for one in edits if os.path.realpath(one.span.path) == path]) for path, source in files]
    return tuple(edit for source, some in by_file for edit in source.exact(some))


def _after(edits: Sequence[Edit]) -> object:
    """Equal for edits that do the same."""
    try:
        return _patch(edits).key()
    except (OSError, Misfit):
        return edits
