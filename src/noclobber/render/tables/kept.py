"""What `preserve` kept, in words: a line for each pair of lines that wrote and saved."""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.reports.kept import Kept
from noclobber.model.units import counted, size
from noclobber.render.text import one_line, place, table_of


def kept(rows: Sequence[Kept]) -> str:
    """`96 B  train.py:8:1 `mul_` overwrites what train.py:7:5 saved`, the most first; every line ends in a newline."""
    if not rows:
        return "nothing had to be kept\n"
    total = size(sum(row.bytes for row in rows))
    lines = table_of([(size(row.bytes), _said(row)) for row in rows], right=1)
    return "".join(f"{line}\n" for line in [f"kept {total} for backward, at {counted(len(rows), 'place')}", *lines])


def _said(row: Kept) -> str:
    times = "" if row.times == 1 else f" ({row.times} times)"
    writer = one_line(row.op.partition("::")[2].partition(".")[0] or row.op)
    write = f"{place(row.write.span())}: " if row.write else ""
    save = place(row.save.span()) if row.save else "a line that is not known"
    return f"{write}`{writer}` overwrites what {save} {'will read again' if row.again else 'saved'}{times}"
