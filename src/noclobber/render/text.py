"""Text for readers: control characters are made visible, paths are shown as a reader would type them."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from noclobber.model.reports.finding import Label
from noclobber.model.source import Span, cell_of

TAB = "    "
JOINER = "\u200d"
"""Zero width joiner: the one format character that is kept, as it holds emoji together."""
GAP = "  "
"""What stands between the columns of a table."""
NARROWEST = 20
"""Words are not broken to fewer cells."""
FIXING, APPLYING = "to fix this", "to apply and measure this"
"""What stands before the command of `fix_command`: for errors and warnings, and for hints."""
_ACTING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_BREAK = re.compile(r"\r\n|[\r\n]")


def visible_character(character: str) -> str:
    """A character as it may be shown: tabs as four spaces, control characters as their pictures or escapes.

    Escape sequences, bidirectional overrides, zero-width spaces and undecodable bytes (lone surrogates) are all spelled
    out: none of them reaches the terminal, and none can make source look like other source.
    """
    if character == "\t":
        return TAB
    if character < " ":
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\u2421"
    if "\udc80" <= character <= "\udcff":  # how Python reads a byte that is no text
        return f"\\x{ord(character) - 0xDC00:02x}"
    if unicodedata.category(character) in _ACTING and character != JOINER:
        return character.encode("unicode_escape").decode("ascii")
    return character


def visible(text: str) -> str:
    """Return the text with every control character spelled out, newlines too."""
    return text if text.isprintable() else "".join(map(visible_character, text))


def broken(text: str) -> list[str]:
    """The lines of a text of several lines, each visible, without trailing blanks."""
    return [visible(line).rstrip() for line in _BREAK.split(text.strip())]


def one_line(text: str) -> str:
    """A text of any number of lines on one line."""
    return " ".join(line.strip() for line in broken(text) if line)


def filled(text: str, width: int | None, *, first: str = "", below: str = "  ") -> list[str]:
    """Return a text as lines of a width, broken between words; `first` and `below` are what the lines begin with. It is
    one line where there is no width."""
    if width is None or cells(first + text) <= width:
        return [f"{first}{text}"]
    lines, line = list[str](), first
    for word in re.findall(r"\s*\S+", text):
        if line != first and cells(line + word) > max(width, NARROWEST):
            lines.append(line)
            line = below + word.lstrip()
        else:
            line += word
    return [*lines, line]


def cells(text: str) -> int:
    """Return the width of a text in terminal cells: 2 for most CJK characters and emoji, 0 for a combining mark.

    This is the only import of rich. It is made when something is drawn, which most runs never do.
    """
    from rich.cells import cell_len

    return cell_len(text)


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column of a table is."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def table_of(rows: Sequence[Sequence[str]], *, right: int = 0) -> list[str]:
    """Return the rows of a table as lines, its columns below each other."""
    widths = widths_of(rows)
    return [row_of(row, widths, right=right) for row in rows]


def row_of(cells: Sequence[str], widths: Sequence[int], *, right: int = 0) -> str:
    """Return a row of a table as a line. The first `right` cells stand to the right of their columns, others left."""
    columns = enumerate(zip(cells, widths, strict=True))
    return GAP.join(cell.rjust(most) if at < right else cell.ljust(most) for at, (cell, most) in columns).rstrip()


def shown_path(path: str) -> str:
    """Relative to the current directory where it lies under it; else (`<stdin>`, `C:\\x.py`) as it is.

    A cell of a notebook is called as the notebook calls it: `Cell In[2]`.
    """
    return visible(cell_of(path) or from_root(path, current_folder() or os.sep))


def from_root(path: str, root: str) -> str:
    """Return a path from a root where it lies below; `<stdin>` and paths of other places as they are.

    So is every path below the root of all: none would be found again without its first slash.
    """
    if path.startswith("<"):
        return path
    whole = os.path.normpath(os.path.join(current_folder() or os.sep, path))
    return whole[len(root) + 1 :] if whole.startswith(root + os.sep) else path


def repository() -> str:
    """Return the root of the git repository around the current folder, where CI looks for files; else this folder."""
    here = Path(current_folder() or os.sep)
    return str(next((one for one in (here, *here.parents) if os.path.exists(one / ".git")), here))


def current_folder() -> str:
    """Return the current folder; empty if it was removed under the running program."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def real(path: str) -> str:
    """Return where a file lies; what was typed if nobody knows: no file can have this name, or the folder is gone."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def bytes_of(path: str) -> bytes:
    """Return the bytes of a file's name; Python keeps those that are no text as lone surrogates."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no file has this name
        return path.encode("utf-8", "replace")


def place(span: Span) -> str:
    """`train.py:8:1`, the form that editors and terminals turn into a link; `Cell In[2], line 8` in a notebook."""
    line = place_of_line(span.path, span.line)
    return line if cell_of(span.path) else f"{line}:{span.column}"


def place_of_line(path: str, line: int) -> str:
    """`train.py:8`; `Cell In[2], line 8` in a notebook."""
    return f"{shown_path(path)}, line {line}" if cell_of(path) else f"{shown_path(path)}:{line}"


def kept_source(label: Label) -> dict[int, str]:
    """Line number to text, as the label kept it; empty where the source was missing when it was made."""
    if not any(text.strip() for text in label.source):
        return {}
    return {label.span.line + index: text.rstrip("\r\n") for index, text in enumerate(label.source)}


def fix_command(program: Mapping[str, Any]) -> str:
    """Return the command that proves the edits of a report; empty if the report has none."""
    fix = program.get("fix")
    return told_command(fix.get("command")) if isinstance(fix, Mapping) else ""


def told_command(words: Any) -> str:
    """Return a command of a report as a person types it; empty if it is none, as in a damaged report."""
    return typed(words) if isinstance(words, list) and all(isinstance(one, str) for one in words) else ""


def typed(words: Iterable[str]) -> str:
    """Return a command as a person types it into a shell."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word as a shell takes it; `$'...'` where it holds what a terminal would act on."""
    if word.isprintable():
        return shlex.quote(word)
    spelled = (chr(one) if 32 <= one < 127 and chr(one) not in "'\\" else f"\\x{one:02x}" for one in bytes_of(word))
    return f"$'{''.join(spelled)}'"
