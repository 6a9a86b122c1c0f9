"""The page of a rule, its words broken between words to a width. Code stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

from noclobber.model.reports.page import PROGRAMS
from noclobber.render.text import filled

ITEM = "- "
INDENT = " " * 4


def page(text: str, width: int | None) -> str:
    """Return the page; every line ends in a newline. With a width, paragraphs and items are filled anew."""
    text = text.strip()
    return f"{text}\n" if width is None else "".join(f"{line}\n" for line in _filled(text, width))


def _filled(text: str, width: int) -> Iterator[str]:
    section, words = "", list[str]()
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            section = line
        is_words = line.startswith(" ") and section not in PROGRAMS
        if words and (not is_words or line.strip().startswith(ITEM)):
            yield from _paragraph(words, width)
            words = []
        if is_words:
            words.append(line.strip())
        elif line == section:
            yield from filled(line, width)
        else:
            yield line
    if words:
        yield from _paragraph(words, width)


def _paragraph(words: list[str], width: int) -> list[str]:
    below = INDENT + " " * (len(ITEM) if words[0].startswith(ITEM) else 0)
    return filled(" ".join(words), width, first=INDENT, below=below)
