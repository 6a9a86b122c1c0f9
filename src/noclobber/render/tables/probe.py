"""What a function keeps, as a table: in text, and for a notebook."""

from __future__ import annotations

from html import escape

from noclobber.model.reports.probe import Operand, Probe
from noclobber.model.units import size
from noclobber.render import markup
from noclobber.render.text import one_line, table_of

NAMED = 3
"""How many keepers of one tensor are named."""


def table(probe: Probe) -> str:
    """A line for each tensor, then what is kept in all; every line ends in a newline."""
    rows = [(one_line(one.name), _kind(one), _verdict(one)) for one in probe.operands]
    lines = [f"  {line}" for line in table_of(rows)]
    return "".join(f"{line}\n" for line in [one_line(probe.call), *lines, *_sum(probe)])


def html(probe: Probe) -> str:
    """The same as a table of HTML."""
    rows = [
        (f"<code>{escape(one_line(one.name))}</code>", escape(_kind(one)), escape(_verdict(one)))
        for one in probe.operands
    ]
    heads = dict.fromkeys(("tensor", "kind", "before backward"), "")
    below = "".join(f"<p>{escape(line)}</p>" for line in _sum(probe))
    return markup.table(heads, rows, caption=escape(one_line(probe.call))) + below


def _kind(operand: Operand) -> str:
    return f"{operand.role} {operand.dtype}[{', '.join(map(str, operand.shape))}]"


def _verdict(operand: Operand) -> str:
    also = f" (the memory of `{operand.also}`)" if operand.also else ""
    if operand.free:
        return f"free{also}"
    by = ", ".join(operand.by[:NAMED]) + (f" and {len(operand.by) - NAMED} more" if len(operand.by) > NAMED else "")
    silent = "" if operand.noticed else "; PyTorch does not notice a write"
    return f"kept{f' by {by}' if by else ''}{silent}{also}"


def _sum(probe: Probe) -> list[str]:
    lines = []
    if probe.differentiable:
        own = f", {size(probe.own)} of them neither input nor output" if probe.own else ""
        lines.append(f"  {size(probe.bytes)} kept for backward{own}")
    return [*lines, *(f"  note: {one_line(note)}" for note in probe.notes)]
