"""Files as they are, byte for byte, and as they are edited: encoding, byte order mark and line ends stay."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import tempfile
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from noclobber.model.reports.finding import Edit
from noclobber.model.source import Span

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


class Misfit(ValueError):
    """Edits that lie outside a file, or overlap, or hold what its encoding has no bytes for."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text with its own line ends; `path` is real."""

    path: str
    text: str
    encoding: str

    @staticmethod
    def read(path: str) -> Source:
        """Read a file. Raises OSError, and Misfit where its bytes are not text of the encoding that it declares."""
        path = os.path.realpath(path)
        with open(path, "rb") as file:
            data = file.read()
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return Source(path, data.decode(encoding), encoding)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            raise Misfit(f"`{path}` cannot be read: {error}") from None

    @property
    def data(self) -> bytes:
        """The bytes. Raises Misfit where the encoding has none for the text."""
        try:
            return self.text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise Misfit(f"`{self.path}` is {self.encoding}, which lacks a character of the patch: {error}") from None

    @property
    def plain(self) -> str:
        r"""The text with `\n` at each line's end, as Python reads it."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n")

    def edited(self, edits: Iterable[Edit]) -> Source:
        """The file after edits, each given in lines and columns of this one. Raises Misfit."""
        pieces: list[str] = []
        done = 0
        for start, stop, text in self._replaced(edits):
            pieces += (self.text[done:start], text)
            done = stop
        return Source(self.path, "".join([*pieces, self.text[done:]]), self.encoding)

    def exact(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Return equal edits that can be applied literally, from last to first. Raises Misfit.

        They are sorted and do not overlap or touch, even if a given edit ends where the next begins. They have the line
        ends of the file.
        """
        edits = list(edits)
        apart: list[tuple[int, int, str]] = []
        for start, stop, text in self._replaced(edits):
            if apart and apart[-1][1] == start:
                start, text = apart[-1][0], apart.pop()[2] + text
            apart.append((start, stop, text))
        lines, starts = self._lines()
        if len(lines) > 1 and not lines[-1] and not _end_of(lines[-2]):
            del lines[-1], starts[-2]  # no line: the one before it has no end
        path = edits[0].span.path if edits else self.path
        return tuple(
            Edit(Span(path, *_position(lines, starts, start), *_position(lines, starts, stop)), text)
            for start, stop, text in apart
        )

    def _lines(self) -> tuple[list[str], list[int]]:
        """The lines with their ends, the last of them without, and the offset of each and of the end."""
        lines = _LINE.findall(self.text)
        return lines, list(accumulate(map(len, lines), initial=0))

    def _replaced(self, edits: Iterable[Edit]) -> Iterator[tuple[int, int, str]]:
        """Return start, end and new text of each edit, sorted. Raises Misfit."""
        lines, starts = self._lines()
        end = "\r\n" if self.text.count("\r\n") * 2 > self.text.count("\n") else "\n"
        done = 0
        for edit in sorted(edits, key=_order):
            span = edit.span
            start = _offset(lines, starts, span.line, span.column)
            stop = _offset(lines, starts, span.end_line, span.end_column)
            if start < done or stop < start:
                raise Misfit("two edits overlap")
            line_end = _end_of(lines[span.line - 1]) or end
            text = edit.replacement.replace("\r\n", "\n").replace("\n", line_end)
            if span.column == 1 < span.line and start == len(self.text) and not _end_of(lines[span.line - 2]):
                text = end + text  # the last line lacks its end, and this comes below it
            yield start, stop, text
            done = stop


def _order(edit: Edit) -> tuple[int, int, int, int]:
    span = edit.span
    return (span.line, span.column, span.end_line, span.end_column)


def _offset(lines: Sequence[str], starts: Sequence[int], line: int, column: int) -> int:
    """Where a line and column, both from 1, are in the text; the line after the last one is its end."""
    if not 1 <= line <= len(lines):
        raise Misfit(f"there is no line {line}")
    body = lines[line - 1].rstrip("\r\n")
    if not 1 <= column <= len(body) + 1:
        raise Misfit(f"line {line} has no column {column}")
    return starts[line - 1] + column - 1


def _position(lines: Sequence[str], starts: Sequence[int], offset: int) -> tuple[int, int]:
    """The line and column, both from 1, of an offset."""
    line = bisect_right(starts, offset, 0, len(lines))
    return line, offset - starts[line - 1] + 1


def _end_of(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def diff(before: Source, after: Source, shown: str) -> str:
    """A unified diff that `patch -p1` and `git apply` take; `shown` is the path from where they run.

    Its bytes are those of the files: bytes that are not UTF-8 are in it as `surrogateescape` has them. Raises Misfit.
    """
    texts = (one.data.decode("utf-8", "surrogateescape") for one in (before, after))
    old, new = ([line for line in _LINE.findall(text) if line] for text in texts)
    rows = difflib.unified_diff(old, new, _named(f"a/{shown}"), _named(f"b/{shown}"))
    return "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)


def _named(path: str) -> str:
    r"""The name of a file in a diff, quoted as git quotes it where it holds what ends a line: `"a/x\n.py"`."""
    if path.isprintable() and '"' not in path and "\\" not in path:
        return path
    return f'"{"".join(map(_spelled, os.fsencode(path)))}"'


def _spelled(byte: int) -> str:
    return _ESCAPES.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def replace_file(source: Source) -> None:
    """Write a file whole or not at all, with the mode that it has. Raises OSError and Misfit."""
    data = source.data
    handle, unfinished = tempfile.mkstemp(dir=os.path.dirname(source.path), prefix=".noclobber-", suffix=".unfinished")
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        about = os.stat(source.path)
        os.chmod(unfinished, about.st_mode & 0o7777)
        os.replace(unfinished, source.path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
