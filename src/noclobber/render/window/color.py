"""What the stream that a report goes to can show: whether colour is wanted there, and how many cells a line has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO


def wanted(stream: IO[str] | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colour is wanted on a stream. The order is CPython's own (`Lib/_colorize.py`, `can_colorize`)."""
    if environ.get("PYTHON_COLORS") in ("0", "1"):
        return environ["PYTHON_COLORS"] == "1"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return environ.get("TERM") != "dumb" and _is_terminal(stream)


def width_of(stream: IO[str] | None, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the cells of a line: what COLUMNS says, or else the terminal. None if the stream is no terminal.

    A terminal that does not know its width has 80 cells, as `shutil.get_terminal_size` says.
    """
    asked = environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    if stream is None or not _is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stand-in that says it is a terminal and has no descriptor of one
        return None


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
