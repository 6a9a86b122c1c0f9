"""The edits of a suggestion as the lines they take away and the lines they put there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from noclobber.model.reports.finding import Edit, Finding, Suggestion
from noclobber.model.source import source_line
from noclobber.render.text import kept_source, place_of_line
from noclobber.render.window.fit import fit, lay_out
from noclobber.render.window.snippet import CONTINUES, Frame, Row

MOST_LINES = 10_000
"""An edit of more lines is not one of ours (a damaged report), and not worth the memory."""
MOST_KEPT = 2
"""Lines between two changes that are shown; of more, there are points in their place."""


@dataclass(frozen=True, slots=True)
class Change:
    """Lines of a file, from `line` on, and what stands there instead. Either may be empty.

    `after` is the line where it stands in the changed file.
    """

    path: str
    line: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    after: int

    def rows(self) -> Iterator[tuple[str, int | None, str]]:
        """Yield sign, number and text. Numbers go up: removed lines have none if the first added one has a lower."""
        is_numbered = not self.added or self.line + len(self.removed) - 1 <= self.after
        for number, text in enumerate(self.removed, self.line):
            yield "-", number if is_numbered else None, text
        for number, text in enumerate(self.added, self.after):
            yield "+", number, text


def changes(suggestion: Suggestion, finding: Finding) -> list[Change]:
    """What the edits do to the source; empty where it is missing or does not fit the edits (then words must do)."""
    known = {(label.span.path, number): text for label in finding.labels for number, text in kept_source(label).items()}
    found: list[Change] = []
    more = Counter[str]()
    for edits in _neighbours(suggestion.edits):
        path, first = edits[0].span.path, edits[0].span.line
        last = max(edit.span.end_line for edit in edits)
        if last - first > MOST_LINES:
            return []
        before = [known.get((path, line)) or source_line(path, line) for line in range(first, last + 1)]
        after = _applied(edits, before)
        if after is None or not (any(line.strip() for line in before) or all(map(_adds_lines, edits))):
            return []
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                found.append(
                    Change(path, first + i1, tuple(before[i1:i2]), tuple(after[j1:j2]), first + j1 + more[path])
                )
        more[path] += len(after) - len(before)
    return found


def _adds_lines(edit: Edit) -> bool:
    """Whole new lines before another: what that one says does not matter, so it may be missing."""
    span, text = edit.span, edit.replacement
    return (span.line, span.column) == (span.end_line, span.end_column) == (span.line, 1) and text.endswith("\n")


def _neighbours(edits: Iterable[Edit]) -> list[list[Edit]]:
    """Edits of touching lines together, in source order."""
    groups: list[list[Edit]] = []
    end: tuple[str, int] = ("", 0)
    for edit in sorted(edits, key=lambda one: (one.span.path, one.span.line, one.span.column, one.span.end_line)):
        if groups and edit.span.path == end[0] and edit.span.line <= end[1] + 1:
            groups[-1].append(edit)
            end = (end[0], max(end[1], edit.span.end_line))
        else:
            groups.append([edit])
            end = (edit.span.path, edit.span.end_line)
    return groups


def _applied(edits: list[Edit], lines: list[str]) -> list[str] | None:
    """The lines after the edits; None where an edit lies outside them or overlaps another."""
    first = edits[0].span.line
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    text = "\n".join(lines)
    pieces: list[str] = []
    done = 0
    for edit in edits:
        span = edit.span
        for number, column in ((span.line, span.column), (span.end_line, span.end_column)):
            if not (0 <= number - first < len(lines) and 0 <= column - 1 <= len(lines[number - first])):
                return None
        start = offsets[span.line - first] + span.column - 1
        stop = offsets[span.end_line - first] + span.end_column - 1
        if start < done or stop < start:
            return None
        pieces += [text[done:start], edit.replacement]
        done = stop
    return "".join([*pieces, text[done:]]).replace("\r\n", "\n").split("\n")


def rows(found: list[Change], path: str | None, frame: Frame) -> Iterable[Row]:
    """The changes as `-` and `+` lines; `path` is the file the window is about, which needs no mention."""
    yield frame.bar()
    previous: Change | None = None
    for change in found:
        if change.path != (previous.path if previous else path):
            if previous:
                yield frame.bar()
            yield [("gutter", f"{' ' * frame.gutter}::: "), ("", place_of_line(change.path, change.line))]
            yield frame.bar()
        elif previous:
            yield from _kept(previous, change, frame)
        previous = change
        same = _same(change)
        for sign, number, text in change.rows():
            line = lay_out(text)
            piece = fit(line, *line.cells_of(same, same + 1), frame.room)
            style = "removed" if sign == "-" else "added"
            yield [frame.number(number or "", ""), (style, f"{sign} {piece.text}")]


def _kept(one: Change, other: Change, frame: Frame) -> Iterator[Row]:
    """The lines between two changes where they are few, so that a line which moves past one is seen to move."""
    numbers = range(one.line + len(one.removed), other.line)
    texts = [source_line(other.path, number) for number in numbers[: MOST_KEPT + 1]]
    if numbers and (len(numbers) > MOST_KEPT or not any(map(str.strip, texts))):
        yield [("gutter", CONTINUES)]
        return
    for number, text in zip(numbers, texts, strict=True):
        piece = fit(lay_out(text), 0, 0, frame.room)
        yield [frame.number(number + other.after - other.line, ""), ("", f"  {piece.text}")]


def _same(change: Change) -> int:
    """Characters that all its lines begin with: where the change begins."""
    lines = [*change.removed, *change.added]
    columns = enumerate(zip(*lines, strict=False))
    return next((index for index, column in columns if len(set(column)) > 1), min(map(len, lines)))
