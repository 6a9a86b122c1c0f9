"""The source window of a finding as plain rows of styled segments: lines, underlines, gaps, other files.

Each label has its own underline below its line, with its words beside it. Connectors would be shorter where many labels
are on one line, but hard to get right. This stays readable with any number of labels, nested or equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from noclobber.model.reports.finding import Finding, Label
from noclobber.model.source import source_line
from noclobber.render.text import cells, filled, kept_source, one_line, place
from noclobber.render.window.fit import Line, fit, lay_out

Row = list[tuple[str, str]]
"""(style, text) from left to right. The styles are named in `terminal` and `html`; "" is plain."""
STORY = ("create", "save", "write", "read", "inside")
CONTINUES = "..."


@dataclass(frozen=True, slots=True)
class Mark:
    """An underline: characters `start` to `end` (0-based, exclusive) of one line, and the label it belongs to."""

    start: int
    end: int
    label: Label
    primary: bool
    text: str
    tail: str = ""

    @property
    def style(self) -> str:
        """Of the underline and of its words."""
        return "primary" if self.primary else "secondary"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a window is drawn in: the digits of its line numbers, and the cells of its lines. Words are broken there if
    it `breaks` them."""

    gutter: int
    width: int
    breaks: bool

    @property
    def room(self) -> int:
        """The cells of a source line beside its number."""
        return self.width - self.gutter - 3

    def wrap(self, text: str, room: int) -> list[str]:
        """Break words to a number of cells."""
        return filled(text, room if self.breaks else None, below="")

    def bar(self) -> Row:
        """An empty line of the window."""
        return [("gutter", " " * (self.gutter + 1) + "|")]

    def number(self, line: int | str, sign: str) -> tuple[str, str]:
        """The number of a line, and what stands between it and the text."""
        return "gutter", f"{line:>{self.gutter}} {sign}"


def window(finding: Finding, frame: Frame) -> list[Row]:
    """All places of a finding, the primary label's file first; no rows where a finding has no labels."""
    primary = finding.primary
    if primary is None:
        return []
    files: dict[str, list[Label]] = {primary.span.path: []}
    for label in finding.labels:
        files.setdefault(label.span.path, []).append(label)
    rows: list[Row] = []
    for arrow, labels in zip(["-->"] + [":::"] * len(files), files.values(), strict=False):
        head = primary if arrow == "-->" else labels[0]
        rows.append([("gutter", f"{' ' * frame.gutter}{arrow} "), ("", place(head.span))])
        rows += [frame.bar(), *_file(labels, primary, frame), frame.bar()]
    return rows


def _file(labels: list[Label], primary: Label, frame: Frame) -> Iterable[Row]:
    sources: dict[int, str] = {}
    for label in sorted(labels, key=lambda one: one is not primary):
        for number, text in kept_source(label).items():
            sources.setdefault(number, text)
    marks: dict[int, list[Mark]] = {}
    for label in labels:
        for number, mark in _marks(label, label is primary, sources):
            marks.setdefault(number, []).append(mark)
    previous: int | None = None
    for number in sorted(marks):
        if previous is not None and number > previous + 1:
            yield [("gutter", CONTINUES)]
        if sources[number].strip():
            yield from _line(number, sources[number], marks[number], frame)
        else:  # the source is gone: the words stand where it would
            for mark in sorted(marks[number], key=_story):
                first, *rest = frame.wrap(mark.text, frame.room)
                yield [frame.number(number, "= "), (mark.style, first)]
                yield from ([("", " " * (frame.gutter + 3)), (mark.style, line)] for line in rest)
        previous = number


def _marks(label: Label, primary: bool, sources: dict[int, str]) -> Iterable[tuple[int, Mark]]:
    """Yield one underline for a span on one line; for a longer span, one on its first line and one on its last."""
    span = label.span
    text = one_line(label.text)
    for number in {span.line, max(span.line, span.end_line)}:
        if number not in sources:
            sources[number] = source_line(span.path, number)
    start = span.column - 1
    if span.end_line <= span.line or not sources[span.line].strip():
        yield span.line, Mark(start, span.end_column - 1, label, primary, text)
        return
    yield span.line, Mark(start, len(sources[span.line].rstrip()), label, primary, "", CONTINUES)
    last = sources[span.end_line]
    yield span.end_line, Mark(len(last) - len(last.lstrip()), span.end_column - 1, label, primary, text)


def _line(number: int, text: str, marks: list[Mark], frame: Frame) -> Iterable[Row]:
    """A source line with its underlines; again for labels that are too far apart for one piece of a long line."""
    line = lay_out(text)
    for group in _groups(line, marks, frame.room):
        bounds = [line.cells_of(mark.start, mark.end) for mark in group]
        piece = fit(line, min(start for start, _ in bounds), max(end for _, end in bounds), frame.room)
        yield [frame.number(number, "| "), ("", piece.text)]
        by_cells: dict[tuple[int, int, str], list[Mark]] = {}
        for mark, (start, end) in zip(group, bounds, strict=True):
            by_cells.setdefault((*piece.cells_of(start, end), mark.tail), []).append(mark)
        for (start, end, _), equal in by_cells.items():
            yield from _underline(start, end, equal, frame)


def _groups(line: Line, marks: list[Mark], room: int) -> Iterable[list[Mark]]:
    """Return groups of marks that fit on one piece of the line, each in the order of the story."""
    groups: list[list[Mark]] = []
    first = 0
    for mark in sorted(marks, key=lambda one: one.start):
        start, end = line.cells_of(mark.start, mark.end)
        if groups and (line.length <= room or end - first <= room - 2):
            groups[-1].append(mark)
        else:
            groups.append([mark])
            first = start
    return [sorted(group, key=_story) for group in groups]


def _story(mark: Mark) -> int:
    return STORY.index(mark.label.role) if mark.label.role in STORY else len(STORY)


def _underline(start: int, end: int, marks: list[Mark], frame: Frame) -> Iterable[Row]:
    """An underline, the first words beside it where they fit, others beneath."""
    primary = any(mark.primary for mark in marks)
    style = "primary" if primary else "secondary"
    margin = frame.number("", "| ")
    row: Row = [margin, ("", " " * start), (style, ("^" if primary else "-") * (end - start) + marks[0].tail)]
    column = end + 1
    texts = [mark for mark in marks if mark.text]
    longest = max((cells(mark.text) for mark in texts), default=0)
    if texts and column + longest <= frame.room:
        row.append((texts[0].style, f" {texts[0].text}"))
        del texts[0]
    elif texts:
        column = max(0, min(start, frame.room - longest))
    yield row
    for mark in texts:
        yield from (
            [margin, ("", " " * column), (mark.style, line)] for line in frame.wrap(mark.text, frame.room - column)
        )
