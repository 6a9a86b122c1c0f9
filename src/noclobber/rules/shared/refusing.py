"""Refused writes: what is said of each text of PyTorch, and the finding that this makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from noclobber.model.reports.finding import Cause, Cure, Finding, Label, Role, Suggestion, label
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.silent import Event
from noclobber.model.source import Site
from noclobber.rules.shared.account import Help, account
from noclobber.rules.shared.labels import inside_label, subject
from noclobber.rules.shared.texts import is_in
from noclobber.rules.shared.wording import op_in_words

_ROLES: dict[str, Role] = {"write": "write", "save": "save", "backward": "read", "grad": "read", "access": "read"}
READERS = {"backward": "backward reads it here", "grad": "`autograd.grad` reads it here"}
_UNSEEN = "noclobber did not see the write. It happened after the view was made and before this line"


def says(refusal: Refusal, *texts: str) -> bool:
    """Return True if PyTorch's message has one of these texts."""
    return any(is_in(one, refusal.message) for one in texts)


def writes_it(refusal: Refusal, target: str = "it") -> str:
    """ "`add_` writes it here", or "written in place here" where the operator is not known."""
    return f"`{op_in_words(refusal.op)}` writes {target} here" if refusal.op else "written in place here"


ASIDE = Suggestion("write out of place", cure=Cure.OUT_OF_PLACE)
APPLIED = "the Function is applied here"


def applied(refusal: Refusal) -> str:
    """Return the label for a custom Function: its own write if known, else the line that applies it."""
    return APPLIED if refusal.written is None else writes_it(refusal, "its input")


Said = str | Callable[[Refusal], str]
"""Words, or what gives them."""


@dataclass(frozen=True, slots=True)
class Text:
    """Texts of PyTorch that mean the same, and what is said of a refusal that has one of them.

    `told` labels the line to blame, `created` and `surfaced` two others that may be known.
    """

    texts: Sequence[str]
    headline: Said
    helps: Sequence[Help] | Callable[[Refusal], Sequence[Help]]
    note: Said | Callable[[Refusal], Sequence[str]]
    told: Said = writes_it
    created: Said = "the view is made here"
    surfaced: Said = ""
    cause: Cause | Callable[[Refusal], Cause | None] | None = None


def refused(texts: Sequence[Text], event: Event) -> Finding | None:
    """Return what is said of the first of these texts that an event has; None if it has none.

    If PyTorch refuses a view after a write to its base that is not known, the line to blame is where the view is used.
    """
    found = next((one for one in texts if isinstance(event, Refusal) and says(event, *one.texts)), None)
    if found is None or not isinstance(event, Refusal):
        return None
    note, told = found.note(event) if callable(found.note) else found.note, _said(found.told, event)
    notes = [note] if isinstance(note, str) else [*note]
    if is_below(event) and event.written is None:
        told, notes = "the view is used here, after the write to its base", [*notes, _UNSEEN]
    return account(
        _said(found.headline, event),
        _labels(event, told, _said(found.created, event), _said(found.surfaced, event)),
        notes=notes,
        helps=found.helps(event) if callable(found.helps) else found.helps,
        cause=found.cause(event) if callable(found.cause) else found.cause,
    )


def _said(words: Said, refusal: Refusal) -> str:
    return words if isinstance(words, str) else words(refusal)


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
        found.append(label("read", later, surfaced or READERS.get(refusal.call, "the error surfaces here")))
    return (*found, *inside_label(site, "the write runs here" if role == "write" else "it runs here"))
