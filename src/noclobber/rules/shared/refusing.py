"""What the refusal rules share: patterns that match across line breaks, the labels of a refusal, its finding."""

from __future__ import annotations

import re
from collections.abc import Sequence

from noclobber.model.events import Refusal
from noclobber.model.finding import Cause, Finding, Label, Role, Severity, Suggestion, label
from noclobber.model.silent import Event
from noclobber.model.source import Site
from noclobber.rules.shared.labels import inside_label, subject
from noclobber.rules.shared.wording import op_in_words

_GAP = r"(?:[\s>|]|\[rank\d+\]:)+"
_ROLES: dict[str, Role] = {"write": "write", "save": "save", "backward": "read", "grad": "read", "access": "read"}
_READERS = {"backward": "backward reads it here", "grad": "`autograd.grad` reads it here"}


def messages(*patterns: str) -> tuple[re.Pattern[str], ...]:
    """Compile patterns; a blank in them matches any white space or line prefix between two words."""
    return tuple(re.compile(pattern.replace(" ", _GAP)) for pattern in patterns)


def recognised(event: Event, patterns: Sequence[re.Pattern[str]]) -> Refusal | None:
    """Return the event if it is a refusal with one of these texts, else None."""
    if isinstance(event, Refusal) and any(pattern.search(event.message) for pattern in patterns):
        return event
    return None


def finding(
    rule: tuple[str, str, Severity],
    headline: str,
    refusal: Refusal,
    *,
    told: str,
    created: str = "the view is made here",
    surfaced: str = "",
    notes: Sequence[str] = (),
    suggestions: Sequence[Suggestion] = (),
    cause: Cause | None = None,
) -> Finding:
    """Return the finding of a refusal. `told` labels the line to blame, the other words label the other known lines."""
    return Finding(
        *rule,
        headline,
        _labels(refusal, told, created, surfaced),
        cause=cause,
        notes=tuple(notes),
        suggestions=tuple(suggestions),
    )


def blamed(refusal: Refusal) -> Site | None:
    """Return the line of the write if the exception came later, else the line that raised."""
    return refusal.written or refusal.site


def writes_it(refusal: Refusal, target: str = "it") -> str:
    """ "`add_` writes it here", or "written in place here" where the operator is not known."""
    return f"`{op_in_words(refusal.op)}` writes {target} here" if refusal.op else "written in place here"


_UNSEEN = "noclobber did not see the write. It happened after the view was made and before this line"


def is_below(refusal: Refusal) -> bool:
    """Return True if PyTorch refuses a view after a write to its base."""
    return says(refusal, "its base or another view of its base")


def told_below(refusal: Refusal, target: str) -> str:
    """Return the label of the write to the base of a view; of the use of the view if the write is not known."""
    return writes_it(refusal, target) if refusal.written else "the view is used here, after the write to its base"


def unseen_below(refusal: Refusal) -> list[str]:
    """Return the note that the write to the base of a view is not known; empty if it is."""
    return [_UNSEEN] * (is_below(refusal) and refusal.written is None)


APPLIED = "the Function is applied here"


def applied(refusal: Refusal) -> str:
    """Return the label for a custom Function: its own write if known, else the line that applies it."""
    return APPLIED if refusal.written is None else writes_it(refusal, "its input")


def named(refusal: Refusal, what: str) -> str:
    """ "the parameter `fc.weight`, a leaf tensor": the subject with what it is; `what` alone where it has no name."""
    return f"{subject(refusal.tensor)}, {what}" if refusal.tensor.name else what


def says(refusal: Refusal, pattern: str) -> bool:
    """Return True if PyTorch's text has the pattern; a blank in it matches any white space."""
    return messages(pattern)[0].search(refusal.message) is not None


def _labels(refusal: Refusal, told: str, created: str, surfaced: str) -> tuple[Label, ...]:
    site = blamed(refusal)
    found: list[Label] = []
    if refusal.created is not None and refusal.created != site:
        found.append(label("create", refusal.created, created, primary=site is None))
    if refusal.saved is not None and refusal.saved != site:
        found.append(label("save", refusal.saved, "it is saved here", primary=site is None and not found))
    if site is None:
        return tuple(found)
    role = "write" if refusal.written is not None else _ROLES[refusal.call]
    found.append(label(role, site, told, primary=True))
    if refusal.overwritten not in (None, site):
        found.append(label("write", refusal.overwritten, "and it is overwritten here"))
    later = refusal.site
    if later is not None and later not in (site, refusal.created, refusal.saved):
        found.append(label("read", later, surfaced or _READERS.get(refusal.call, "the error surfaces here")))
    return (*found, *inside_label(site, "the write runs here" if role == "write" else "it runs here"))
