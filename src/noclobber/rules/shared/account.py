"""What a rule says of an event: the headline, the lines, why it is so, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from noclobber.model.reports.finding import Cause, Finding, Label, Suggestion
from noclobber.model.seen.silent import Event

Help = str | Suggestion
"""What to do: words alone, or words that say which kind of change they are."""


def account(
    headline: str,
    labels: Iterable[Label],
    *,
    notes: Iterable[str] = (),
    helps: Iterable[Help] = (),
    cause: Cause | None = None,
    event: Event | None = None,
) -> Finding:
    """Return a finding that has no rule yet. `event` is given where it is about another one than the rule was asked of.

    If no label is primary, the first write label is, else the save label, else any other.
    """
    labels = tuple(labels)
    if not any(one.primary for one in labels):
        ranked = sorted(labels, key=lambda one: {"write": 0, "save": 1, "inside": 3}.get(one.role, 2))
        labels = tuple(replace(one, primary=one is ranked[0]) for one in labels)
    helped = tuple(Suggestion(one) if isinstance(one, str) else one for one in helps)
    return Finding("", "", "error", headline, labels, event, cause, notes=tuple(notes), suggestions=helped)
