"""A clobber as a finding: save, write, read, the writes that followed, the library line that a user's call ran."""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Write
from noclobber.model.units import counted, listed
from noclobber.rules.shared.account import Help, account
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
from noclobber.rules.shared.wording import node_in_words

MOST_LABELS = 3
MOST_LINES = 4


def story(
    headline: str,
    clobber: Clobber,
    writes: Sequence[Write],
    *,
    notes: Sequence[str] = (),
    helps: Sequence[Help] = (),
    verb: str = "overwrites it",
    saved: Sequence[Label] = (),
    created: Sequence[Label] = (),
    beside: Sequence[Label] = (),
) -> Finding:
    """What is said of a clobber. The first of `writes` is the one to blame.

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
        node = f", in {clobber.read.node}" if clobber.read.node else ""
        notes = (*notes, f"{reader_in_words(clobber.read)} reads it at {where(clobber.read.site)}{node}")
        read = ()
    more, said = _followers(writes[1:], written, room=MOST_LABELS - len(known) - len(read), clobber=clobber, verb=verb)
    beside = (*beside, *(in_step(blamed) if blamed else ()))
    library = inside_label(after, f"{writer_in_words(blamed)} runs here") if blamed else ()
    library = library or inside_label(clobber.save.site, f"{node_in_words(clobber.save.node)} runs here")
    labels = (*known, *more, *read, *beside, *library)
    return account(headline, labels, notes=(*notes, *said), helps=helps)


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
    notes = [f"{counted(len(again) + 1, 'write')} at this line came before backward read it"] if again else []
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
