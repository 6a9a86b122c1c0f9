"""Who keeps bytes for backward, as a table: the largest first, with line, module and operator."""

from __future__ import annotations

from noclobber.model.reports.ledger import MOST, Entry, Ledger, Peak, repeated, shown
from noclobber.model.units import counted, share, size
from noclobber.render.text import GAP, filled, one_line, place_of_line, table_of, widths_of
from noclobber.render.window.fit import CUT

LINE, MODULE, SOURCE = 2, 3, 5
"""Columns: the first with words, and those that may be shortened."""
NARROWEST = 16
"""Cells that a module and a source keep where a row is too wide. Below that, columns are left out."""


def table(ledger: Ledger, width: int | None = None) -> str:
    """The sum and when it was reached, then a row for each line, module and operator, `MOST` of them, and one that sums
    up the rest; every line ends in a newline.

    With a width, words are broken there, and rows have shorter columns, or fewer.
    """
    kept = shown(ledger)
    lines = [part for line in summary(ledger) for part in filled(line, width)]
    if not kept:
        return "".join(f"{line}\n" for line in lines)
    rows = [("bytes", "share", "line", "module", "operator", "source"), *(_row(one, ledger) for one in kept[:MOST])]
    if len(kept) > MOST:
        rest = sum(one.bytes for one in kept[MOST:])
        rows.append((size(rest), share(rest, ledger.bytes), f"{len(kept) - MOST} more", "", "", ""))
    rows = rows if width is None else _narrowed(rows, width)
    lines += table_of(rows, right=LINE)
    return "".join(f"{line}\n" for line in lines)


def summary(ledger: Ledger) -> list[str]:
    """Return whether all memory fits, where known; how much is kept, and when; and what is saved but lives anyway."""
    fits = [line for peak in ledger.peaks for line in _fits(peak)]
    if any(peak.bytes > peak.room > 0 for peak in ledger.peaks):
        fits += _less(ledger)
    if not ledger.entries:
        return [*fits, "kept for backward: nothing was saved"]
    lines = [f"kept for backward at the peak: {size(ledger.bytes)} in {counted(ledger.storages, 'storage')}"]
    if ledger.path:
        lines[0] += f"; reached at {place_of_line(ledger.path, ledger.line)}, before backward {ledger.backwards + 1}"
    living = ["parameters"] * (ledger.parameters > 0) + ["buffers"] * (ledger.buffers > 0)
    if living:
        bytes = size(ledger.parameters + ledger.buffers)
        lines.append(f"{' and '.join(living)} among the saves: {bytes}, which live anyway")
    return [*fits, *lines]


def _fits(peak: Peak) -> list[str]:
    """Return whether a device has room for the peak, and what the peak is made of."""
    most = f"{size(peak.bytes)} at the peak of {peak.device}"
    parts = [("parameters", peak.parameters), ("gradients", peak.gradients), ("optimizer state", peak.optimizer)]
    parts.append(("activations and what is computed with", peak.activations))
    made_of = ", ".join(f"{what} {size(one)}" for what, one in parts)
    if not peak.room:
        return [f"{most}: {made_of}"]
    return [f"does it fit in {size(peak.room)}? {'yes' if peak.bytes <= peak.room else 'no'}: {most}", made_of]


def _less(ledger: Ledger) -> list[str]:
    """Return what a smaller batch, activation checkpointing and writes in place would free, at most."""
    lines = [f"half the batch frees at most {size(ledger.bytes // 2)}"] if ledger.bytes else []
    if (blocks := repeated(ledger)) is not None:
        each = f"each of the {blocks.count} modules of `{one_line(blocks.module)}`"
        lines.append(f"activation checkpointing of {each} frees at most {size(blocks.bytes)}")
    if ledger.in_place:
        lines.append(f"writing in place at {counted(ledger.lines, 'line')} frees {size(ledger.in_place)} (`--hints`)")
    return lines


def _narrowed(rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Return the rows so that they fit: with a shorter source, a shorter module, then without source and words."""

    def over() -> int:
        return len(GAP.join(" " * most for most in widths_of(rows))) - width

    for at, keeps_end in ((SOURCE, False), (MODULE, True)):
        if (cells := over()) > 0:
            most = max(widths_of(rows)[at] - cells, NARROWEST)
            rows = [(*row[:at], _cut(row[at], most, keeps_end), *row[at + 1 :]) for row in rows]
    for at in (SOURCE, MODULE, MODULE):  # the last time, the operator stands where the module was
        if over() > 0:
            rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return rows


def _cut(text: str, most: int, keeps_end: bool) -> str:
    """Return a text of at most so many characters; of a module, the end says more."""
    if len(text) <= most:
        return text
    return f"{CUT}{text[len(text) - most + 1 :]}" if keeps_end else f"{text[: most - 1]}{CUT}"


def place_of(one: Entry) -> str:
    """`train.py:8`, or words where the line is not known."""
    return place_of_line(one.path, one.line) if one.path else "a line that is not known"


def _row(one: Entry, ledger: Ledger) -> tuple[str, ...]:
    words = (place_of(one), one_line(one.module), one_line(one.op), one_line(one.source))
    return (size(one.bytes), share(one.bytes, ledger.bytes), *words)
