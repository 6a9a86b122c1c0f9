"""What `preserve` kept, in words: a line for each pair of lines that wrote and saved."""

from __future__ import annotations

from collections.abc import Sequence

from noclobber.model.kept import Kept
from noclobber.render.text import one_line, place


def kept(rows: Sequence[Kept]) -> str:
    """`96 B  train.py:8:1 `mul_` overwrites what train.py:7:5 saved`, the most first; every line ends in a newline."""
    if not rows:
        return "nothing had to be kept\n"
    total = sum(row.bytes for row in rows)
    sizes = [_bytes(row.bytes) for row in rows]
    width = max(map(len, sizes))
    lines = [f"kept {_bytes(total)} for backward, at {len(rows)} place{'' if len(rows) == 1 else 's'}"]
    for size, row in zip(sizes, rows, strict=True):
        times = "" if row.times == 1 else f" ({row.times} times)"
        lines.append(f"{size:>{width}}  {_where(row)}{times}")
    return "".join(f"{line}\n" for line in lines)


def _where(row: Kept) -> str:
    writer = one_line(row.op.partition("::")[2].partition(".")[0] or row.op)
    write = f"{place(row.write.span())}: " if row.write else ""
    save = place(row.save.span()) if row.save else "a line that is not known"
    return f"{write}`{writer}` overwrites what {save} {'will read again' if row.again else 'saved'}"


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
