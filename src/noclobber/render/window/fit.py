"""A source line laid out in terminal cells, and the piece of it around a span that fits a width."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from noclobber.render.text import JOINER, cells, visible_character

CUT = "…"


@dataclass(frozen=True, slots=True)
class Line:
    """A source line in cells. `starts[i]` and `ends[i]` bound the glyph that character `i` is part of."""

    glyphs: tuple[tuple[int, str], ...]
    """(first cell, text as shown) of each glyph."""
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def length(self) -> int:
        """Cells of the whole line."""
        return self.ends[-1] if self.ends else 0

    def cells_of(self, start: int, end: int) -> tuple[int, int]:
        """The cells of characters `start` to `end`, at least one; for a span beyond the line, the one after its end."""
        start = max(0, start)
        if start >= len(self.starts):
            return self.length, self.length + 1
        first = self.starts[start]
        last = self.ends[min(max(end, start + 1), len(self.ends)) - 1]
        return first, max(last, first + 1)


def lay_out(text: str) -> Line:
    """Spell out what does not show, and measure. A base with its combining marks and a joined emoji are one glyph."""
    glyphs: list[tuple[int, str]] = []
    starts: list[int] = []
    ends: list[int] = []
    text = text.rstrip(" \t")
    position = index = 0
    while index < len(text):
        stop = index + 1
        while stop < len(text) and _continues(text[stop - 1], text[stop]):
            stop += 1
        shown = "".join(map(visible_character, text[index:stop]))
        width = cells(shown)
        glyphs.append((position, shown))
        starts.extend([position] * (stop - index))
        ends.extend([position + width] * (stop - index))
        position += width
        index = stop
    return Line(tuple(glyphs), tuple(starts), tuple(ends))


def _continues(before: str, character: str) -> bool:
    if before.isascii() and character.isascii():
        return False
    return (
        character == JOINER
        or (before == JOINER and not character.isascii())
        or unicodedata.category(character) in ("Mn", "Me")
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a line. Cell `c` of the line is cell `c - shift` of the piece, whose own source is `first` to `last`."""

    text: str
    shift: int
    first: int
    last: int

    def cells_of(self, start: int, end: int) -> tuple[int, int]:
        """Cells `start` to `end` of the line as cells of the piece, clipped to it, never empty."""
        first = min(max(start - self.shift, self.first), self.last)
        return first, max(min(end - self.shift, self.last), first + 1)


def fit(line: Line, start: int, end: int, width: int) -> Piece:
    """The piece of a line, at most `width` cells, that shows the cells `start` to `end`, or as many as it can."""
    if line.length <= width:
        return Piece(_between(line, 0, line.length), 0, 0, max(width, line.length + 1))
    end = min(end, start + width - 2)
    left = 0
    if end > width - 1:  # it does not fit from the start of the line: show it in the middle
        left = min(start - (width - 2 - (end - start)) // 2, line.length - (width - 1))
        left = next(cell for cell, _ in line.glyphs if cell >= min(left, start))
    lead = CUT if left else ""
    room = width - len(lead)
    if line.length - left <= room:
        return Piece(lead + _between(line, left, line.length), left - len(lead), len(lead), width)
    shown = _between(line, left, left + room - 1)
    return Piece(lead + shown + CUT, left - len(lead), len(lead), width - 1)


def _between(line: Line, left: int, right: int) -> str:
    stops = [cell for cell, _ in line.glyphs[1:]] + [line.length]
    return "".join(
        shown for (cell, shown), stop in zip(line.glyphs, stops, strict=False) if left <= cell and stop <= right
    )
