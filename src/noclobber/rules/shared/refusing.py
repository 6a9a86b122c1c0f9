"""Refused writes: what is said of each text of PyTorch, and the finding that this makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from noclobber.model.events import Refusal
from noclobber.model.finding import Cause, Finding, Label, Role, label
from noclobber.model.silent import Event
from noclobber.model.source import Site
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.labels import inside_label, subject
from noclobber.rules.shared.wording import op_in_words

_GAP = r"(?:[\s>|]|\[rank\d+\]:)+"
_ROLES: dict[str, Role] = {"write": "write", "save": "save", "backward": "read", "grad": "read", "access": "read"}
_READERS = {"backward": "backward reads it here", "grad": "`autograd.grad` reads it here"}
_UNSEEN = "noclobber did not see the write. It happened after the view was made and before this line"


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; a blank in it matches any white space or line prefix between two words."""
    return re.compile(pattern.replace(" ", _GAP))


def says(refusal: Refusal, pattern: str) -> bool:
    """Return True if PyTorch's text has the pattern."""
    return compiled(pattern).search(refusal.message) is not None


def recognised(event: Event, patterns: Sequence[str]) -> Refusal | None:
    """Return the event if it is a refusal with one of these texts, else None."""
    return event if isinstance(event, Refusal) and any(says(event, one) for one in patterns) else None


def writes_it(refusal: Refusal, target: str = "it") -> str:
    """ "`add_` writes it here", or "written in place here" where the operator is not known."""
    return f"`{op_in_words(refusal.op)}` writes {target} here" if refusal.op else "written in place here"


APPLIED = "the Function is applied here"


def applied(refusal: Refusal) -> str:
    """Return the label for a custom Function: its own write if known, else the line that applies it."""
    return APPLIED if refusal.written is None else writes_it(refusal, "its input")


@dataclass(frozen=True, slots=True)
class Text:
    """A text of PyTorch, or several that mean the same, and what is said of a refusal that has it.

    `told` labels the line to blame, `created` and `surfaced` two others that may be known. `unseen` is a further note,
    for where the write is not known.
    """

    pattern: str
    headline: str
    helps: Sequence[Help] | Callable[[Refusal], Sequence[Help]]
    note: str
    told: str | Callable[[Refusal], str] = writes_it
    created: str = "the view is made here"
    surfaced: str = ""
    unseen: str = ""
    cause: Cause | None = None


def refused(texts: Sequence[Text], event: Event) -> Finding | None:
    """Return what the first text says that an event has; None if it has none."""
    found = next((one for one in texts if isinstance(event, Refusal) and says(event, one.pattern)), None)
    if found is None or not isinstance(event, Refusal):
        return None
    return of_refusal(
        event,
        found.headline,
        told=found.told if isinstance(found.told, str) else found.told(event),
        created=found.created,
        surfaced=found.surfaced,
        notes=[found.note, *[found.unseen] * (found.unseen != "" and event.written is None)],
        helps=found.helps(event) if callable(found.helps) else found.helps,
        cause=found.cause,
    )


def of_refusal(
    refusal: Refusal,
    headline: str,
    *,
    told: str,
    created: str = "the view is made here",
    surfaced: str = "",
    notes: Sequence[str] = (),
    helps: Sequence[Help] = (),
    cause: Cause | None = None,
) -> Finding:
    """Return what is said of a refusal. `told` labels the line to blame.

    If PyTorch refuses a view after a write to its base that is not known, that line is where the view is used.
    """
    if is_below(refusal) and refusal.written is None:
        told, notes = "the view is used here, after the write to its base", [*notes, _UNSEEN]
    return account(headline, _labels(refusal, told, created, surfaced), notes=notes, helps=helps, cause=cause)


def blamed(refusal: Refusal) -> Site | None:
    """Return the line of the write if the exception came later, else the line that raised."""
    return refusal.written or refusal.site


def is_below(refusal: Refusal) -> bool:
    """Return True if PyTorch refuses a view after a write to its base."""
    return says(refusal, "its base or another view of its base")


def named(refusal: Refusal, what: str) -> str:
    """ "the parameter `fc.weight`, a leaf tensor": the subject with what it is; `what` alone where it has no name."""
    return f"{subject(refusal.tensor)}, {what}" if refusal.tensor.name else what


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
