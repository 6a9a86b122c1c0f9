"""Who keeps bytes for backward, as a table: the largest first, with line, module and operator."""

from __future__ import annotations

from noclobber.model.ledger import Entry, Ledger
from noclobber.model.units import share, size
from noclobber.render.text import one_line, place_of_line

MOST = 30
"""How many rows the table has; one more sums up the rest."""


def table(ledger: Ledger) -> str:
    """The sum and when it was reached, then a row for each line, module and operator; every line ends in a newline."""
    if not ledger.entries:
        return "kept for backward: nothing was saved\n"
    kept = [one for one in ledger.entries if not one.parameter]
    storages = sum(one.storages for one in kept)
    lines = [f"kept for backward at the peak: {size(ledger.bytes)} in {storages} storage{'s' * (storages != 1)}"]
    if ledger.path:
        lines[0] += f"; reached at {place_of_line(ledger.path, ledger.line)}, before backward {ledger.backwards + 1}"
    if ledger.parameters:
        lines.append(f"parameters among the saves: {size(ledger.parameters)}, which live anyway")
    if not kept:
        return "".join(f"{line}\n" for line in lines)
    rows = [("bytes", "share", "line", "module", "operator", "source"), *(_row(one, ledger) for one in kept[:MOST])]
    if len(kept) > MOST:
        rest = sum(one.bytes for one in kept[MOST:])
        rows.append((size(rest), share(rest, ledger.bytes), f"{len(kept) - MOST} more", "", "", ""))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for row in rows:
        cells = [f"{row[0]:>{widths[0]}}", f"{row[1]:>{widths[1]}}", *(f"{row[at]:<{widths[at]}}" for at in (2, 3, 4))]
        lines.append("  ".join((*cells, row[5])).rstrip())
    return "".join(f"{line}\n" for line in lines)


def place_of(one: Entry) -> str:
    """`train.py:8`, or words where the line is not known."""
    return place_of_line(one.path, one.line) if one.path else "a line that is not known"


def _row(one: Entry, ledger: Ledger) -> tuple[str, ...]:
    words = (place_of(one), one_line(one.module), one_line(one.op), one_line(one.source))
    return (size(one.bytes), share(one.bytes, ledger.bytes), *words)
