"""A write that spoils several saves of a tensor: one finding, with a label for each save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from noclobber.model.reports.finding import Finding, Label, Suggestion
from noclobber.model.source import Span


def of_one_write(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings in order, with all findings of one write to one tensor as one.

    `save` stays that of the first. Findings that ask for different changes to the source stay apart. That PyTorch
    refuses a write for nothing is told last, where the same write makes another gradient wrong.
    """
    found: list[Finding] = []
    for finding in findings:
        for number, known in enumerate(found):
            if (both := _both(known, finding)) is not None:
                found[number] = both
                break
        else:
            found.append(finding)
    wrong = {span for one in found if one.code != _FOR_NOTHING for span in _written(one)}
    return tuple(sorted(found, key=lambda one: one.code == _FOR_NOTHING and not wrong.isdisjoint(_written(one))))


_FOR_NOTHING = "NC102"


def _written(finding: Finding) -> set[Span]:
    return {label.span for label in finding.labels if label.role == "write"}


def _both(one: Finding, other: Finding) -> Finding | None:
    if _about(one) != _about(other) or not any(label.role == "write" for label in one.labels):
        return None
    suggestions = _suggestions(one.suggestions, other.suggestions)
    if suggestions is None:
        return None
    return replace(
        one,
        labels=_labels(one.labels, other.labels),
        count=max(one.count, other.count),
        notes=tuple(dict.fromkeys((*one.notes, *other.notes))),
        suggestions=suggestions,
    )


def _about(finding: Finding) -> tuple[object, ...]:
    places = tuple((one.role, one.span, one.primary) for one in finding.labels if one.role != "save")
    tensor = finding.tensor
    return finding.code, finding.severity, finding.message, places, tensor and (tensor.name, tensor.shape)


def _labels(ours: tuple[Label, ...], others: tuple[Label, ...]) -> tuple[Label, ...]:
    labels = {(one.role, one.span): one for one in ours}
    for label in others:
        known = labels.setdefault((label.role, label.span), label)
        if known.text != label.text:
            labels[label.role, label.span] = replace(known, text=_text(known.text, label.text))
    return tuple(labels.values())


def _text(one: str, other: str) -> str:
    """ "it is read in A and B" of "it is read in A" and "it is read in B"."""
    head, between, last = other.rpartition(" in ")
    if not between or not one.startswith(head + between) or last in one.removeprefix(head + between).split(" and "):
        return one
    return f"{one} and {last}"


def _suggestions(ours: tuple[Suggestion, ...], others: tuple[Suggestion, ...]) -> tuple[Suggestion, ...] | None:
    """Return the helps of both findings if they make the same change to the source, or none; else None."""
    one, other = (first[0] if first else Suggestion("") for first in (ours, others))
    if one.edits != other.edits:
        return None
    if not one.edits:
        return tuple(dict.fromkeys((*ours, *others)))
    message = one.message if other.message in one.message else f"{one.message}, and {other.message}"
    return (replace(one, message=message), *dict.fromkeys((*ours[1:], *others[1:])))
