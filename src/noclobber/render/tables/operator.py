"""What an operator keeps for backward, on one screen; and the table of all operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

from noclobber.model.reports.probe import Case, OperatorPage
from noclobber.render.text import GAP, NARROWEST, filled, row_of, table_of

WIDTH = 100
_HEADS = ("call", "requires grad", "kept", "free")
_PARTS = (0.4, 0.19, 0.19, 0.22)
"""The parts of the width that the columns of a terminal have."""


def page(one: OperatorPage, width: int | None = None) -> str:
    """The page of an operator; every line ends in a newline. With a width, words are broken there."""
    title = f"{one.name}: what backward keeps, and what may be overwritten before it (tried with torch {one.torch})"
    lines = [*filled(title, width), ""]
    most = WIDTH if width is None else min(width, WIDTH)
    lines += [*(line for sentence in one.why for line in filled(sentence, most, below="")), ""] if one.why else []
    rows = [_HEADS, *map(_row, one.cases), *(_row(case, in_place=True) for case in one.in_place)]
    lines += _table(rows, width)
    if any(case.copied for case in one.cases):
        lines += filled("* and memory of its own, which nobody else can overwrite", width, first="  ", below="    ")
    if one.formulas:
        lines += ["", *filled("formulas of this torch (derivatives.yaml):", width)]
        for formula in one.formulas:
            lines.append(f"  {formula.node}")
            for line in formula.text.splitlines():
                indent = " " * (4 + len(line) - len(line.lstrip()))
                lines += filled(line.strip(), width, first=indent, below=f"{indent}  ")
            if formula.kept != formula.probed:
                said, seen = ", ".join(formula.kept) or "nothing", ", ".join(formula.probed) or "nothing"
                note = f"note: the formula computes with {said}; the calls above kept {seen}"
                lines += filled(note, width, first="    ", below="      ")
    lines += [line for note in one.notes for line in filled(f"note: {note}", width)]
    last = "After backward everything may be overwritten; a leaf that requires grad only under torch.no_grad()."
    lines += ["", *filled(last, width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def operators(cases: Iterable[Case], width: int | None = None, *, markdown: bool = False) -> str:
    """A row for each call of each operator: what it keeps and what is free. With a width, cells are broken there.

    A row that another one equals, as of an overload, is left out.
    """
    rows = dict.fromkeys([_HEADS, *map(_row, cases)])
    if not markdown:
        return "".join(f"{line}\n" for line in (table_of([*rows]) if width is None else _broken(rows, width)))
    table = [f"| {' | '.join(_cell(one) for one in row)} |" for row in rows]
    return "".join(f"{line}\n" for line in [table[0], "|---|---|---|---|", *table[1:]])


def _broken(rows: Iterable[tuple[str, ...]], width: int) -> list[str]:
    """Return rows as lines of a width, cells broken there. A call is shown once, above all that may require grad."""
    room = max(width, NARROWEST * len(_HEADS)) - len(GAP) * (len(_HEADS) - 1)
    widths = [int(room * part) for part in _PARTS]
    lines, last = [], ""
    for call, *others in rows:
        shown = ["" if call == last else call, *others]
        cells = [wrap(text, most, subsequent_indent="  ") for text, most in zip(shown, widths, strict=True)]
        lines += [row_of(parts, widths) for parts in zip_longest(*cells, fillvalue="")]
        last = call
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _row(case: Case, *, in_place: bool = False) -> tuple[str, str, str, str]:
    kept = (", ".join(case.kept) or "nothing") + (" *" if case.copied else "")
    if in_place:
        names = [*dict.fromkeys(case.kept), *(["a copy of self"] if case.copied else [])]
        kept = f"{', '.join(names) or 'nothing'} ({'no memory' if case.copied else 'one tensor'} spared)"
    return (case.call, ", ".join(case.needs) or "any", kept, ", ".join(case.free) or "nothing")


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Return the rows below each other in columns; where these are wider than the width, a block of lines for each."""
    lines = [f"  {line}" for line in table_of(rows)]
    if width is None or max(map(len, lines)) <= width:
        return lines
    (_, *heads), *others = rows
    lines = []
    for call, *cells in others:
        lines += filled(call, width, first="  ", below="      ")
        for head, cell in zip(heads, cells, strict=True):
            lines += filled(f"{head}: {cell}", width, first="    ", below="      ")
    return lines
