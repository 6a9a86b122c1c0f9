"""Source files written down in a test: labels and edits are placed by naming the piece of text they point at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from noclobber.model.reports.finding import Edit, Finding, Label, Role, Severity, Suggestion
from noclobber.model.source import Span


@dataclass(frozen=True)
class File:
    """Some lines of a file, by number. `kept` is False where a label may not carry the text along."""

    path: str
    lines: dict[int, str] = field(default_factory=dict)
    kept: bool = True

    def span(self, line: int, piece: str) -> Span:
        """Where `piece` first stands from `line` on; it may hold newlines."""
        first, *others = piece.split("\n")
        column = self.lines[line].index(first) + 1
        if not others:
            return Span(self.path, line, column, line, column + len(first))
        end = line + len(others)
        assert self.lines[end].startswith(others[-1]), "the last line of a piece is given from its first column"
        return Span(self.path, line, column, end, len(others[-1]) + 1)

    def label(self, role: Role, line: int, piece: str, text: str, *, primary: bool = False) -> Label:
        span = self.span(line, piece)
        numbers = range(span.line, span.end_line + 1)
        kept = tuple(self.lines[number] for number in numbers) if self.kept else ("",) * len(numbers)
        return Label(role, span, text, primary, kept)

    def save(self, line: int, piece: str, text: str) -> Label:
        return self.label("save", line, piece, text)

    def write(self, line: int, piece: str, text: str) -> Label:
        return self.label("write", line, piece, text, primary=True)

    def read(self, line: int, piece: str, text: str = "backward reads it here") -> Label:
        return self.label("read", line, piece, text)

    def edit(self, line: int, piece: str, replacement: str) -> Edit:
        return Edit(self.span(line, piece), replacement)


STALE = "in-place write to a tensor that backward still needs"


def finding(code: str, rule: str, message: str, *labels: Label, severity: Severity = "error", **rest: Any) -> Finding:
    return Finding(code, rule, severity, message, labels, **rest)


def stale(*labels: Label, **rest: Any) -> Finding:
    """NC101, the commonest."""
    return finding("NC101", "stale-save", STALE, *labels, **rest)


def advice(message: str, *edits: Edit) -> tuple[Suggestion, ...]:
    return (Suggestion(message, edits),)
