"""A clobber as a finding: save, write, read, the writes that followed, the library line that a user's call ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from noclobber.model.clobber import Clobber
from noclobber.model.events import Write
from noclobber.model.finding import Cause, Finding, Label, Severity, Suggestion
from noclobber.rules.shared.labels import (
    in_step,
    inside_label,
    line_to_show,
    read_label,
    reader_in_words,
    save_label,
    where,
    write_label,
    writer_in_words,
)
from noclobber.rules.shared.wording import counted, listed, node_in_words

MOST_LABELS = 3
MOST_LINES = 4


def story(
    rule: tuple[str, str, Severity],
    headline: str,
    clobber: Clobber,
    writes: Sequence[Write],
    *,
    notes: Sequence[str] = (),
    suggestions: Sequence[Suggestion] = (),
    verb: str = "overwrites it",
    saved: Sequence[Label] = (),
    created: Sequence[Label] = (),
    beside: Sequence[Label] = (),
) -> Finding:
    """The finding of a clobber. `rule` is code, name and severity; the first of `writes` is the one to blame.

    `saved` replaces the label of the save. `created` is one more label; if there are then too many, the label of the
    read becomes a note. `beside` is a second line of the same event, in another function, and replaces no label.
    """
    if clobber.stopped:
        notes = ("noclobber stopped this write before it happened", *notes)
    blamed = writes[0] if writes else None
    if blamed is not None and blamed.again:
        notes = (*notes, "backward ran a checkpointed region again, which made this write a second time")
    written = write_label(blamed, clobber.save, verb=verb) if blamed else ()
    saved = saved or save_label(clobber.save)
    after = line_to_show(blamed) if blamed else None
    read = read_label(clobber.read, after=after)
    known = [*saved, *created, *written]
    if len(known) + len(read) > MOST_LABELS:
        notes = (*notes, *_read_in_words(clobber))
        read = ()
    more, said = _followers(writes[1:], written, room=MOST_LABELS - len(known) - len(read), clobber=clobber, verb=verb)
    beside = (*beside, *(in_step(blamed) if blamed else ()))
    library = inside_label(after, f"{writer_in_words(blamed)} runs here") if blamed else ()
    library = library or inside_label(clobber.save.site, f"{node_in_words(clobber.save.node)} runs here")
    labels = (*known, *more, *read, *beside, *library)
    return account(rule, headline, labels, notes=(*notes, *said), suggestions=suggestions)


def account(
    rule: tuple[str, str, Severity],
    headline: str,
    labels: Sequence[Label],
    *,
    notes: Sequence[str] = (),
    suggestions: Sequence[Suggestion] = (),
    cause: Cause | None = None,
) -> Finding:
    """Return a finding from its labels. The first write label is primary, else the save label, else any other."""
    ranked = sorted(labels, key=lambda one: {"write": 0, "save": 1, "inside": 3}.get(one.role, 2))
    code, name, severity = rule
    return Finding(
        code,
        name,
        severity,
        headline,
        tuple(replace(one, primary=one is ranked[0]) for one in labels),
        cause=cause,
        notes=tuple(notes),
        suggestions=tuple(suggestions),
    )


def _read_in_words(clobber: Clobber) -> tuple[str, ...]:
    read = clobber.read
    node = f", in {read.node}" if read.node else ""
    return (f"{reader_in_words(read)} reads it at {where(read.site)}{node}",)


def _followers(
    later: Sequence[Write], first: Sequence[Label], *, room: int, clobber: Clobber, verb: str
) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    """Labels for the writes after the first, as far as there is room, and a note that counts the rest."""
    again = [write for write in later if _same_place(write, first)]
    others: dict[object, Write] = {}
    for write in later:
        site = line_to_show(write)
        if not _same_place(write, first):
            others.setdefault(site.span() if site else None, write)
    notes = [f"the same line wrote {counted(len(again) + 1, 'time')} before backward read it"] if again else []
    if room > 0 and len(others) == 1:
        return write_label(next(iter(others.values())), clobber.save, verb=verb), tuple(notes)
    if others:
        places = [where(line_to_show(write)) for write in others.values()]
        rest = [f"{len(places) - MOST_LINES + 1} more places"] if len(places) > MOST_LINES else []
        places = places[: MOST_LINES - 1] + rest if rest else places
        number = len(later) - len(again)
        notes.append(f"{counted(number, 'more write')} followed, at {listed(places)}")
    return (), tuple(notes)


def _same_place(write: Write, first: Sequence[Label]) -> bool:
    site = line_to_show(write)
    if not first or site is None:
        return False
    span = site.span()
    return (span.path, span.line) == (first[0].span.path, first[0].span.line)
