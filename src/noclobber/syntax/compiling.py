"""Compiles text of the program again, in silence: the program has shown its own warnings about the text."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType


def compiled(text: str, path: str) -> CodeType:
    """Return the code of a file's text. Raises SyntaxError or ValueError where it is no Python."""
    with _in_silence():
        return compile(text, path, "exec", dont_inherit=True)


def parsed(text: str) -> ast.Module:
    """Return the syntax of a text. Raises SyntaxError, ValueError or RecursionError where it is no Python."""
    with _in_silence():
        return ast.parse(text)


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep Python from warning about syntax: of `"\\d"` since 3.12, of `return` in a `finally` since 3.14.

    `warnings.catch_warnings` would make Python forget which warnings of the program it has shown.
    """
    filters, silent = warnings.filters, ("ignore", None, SyntaxWarning, None, 0)
    filters.insert(0, silent)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        filters.remove(silent)  # type: ignore[attr-defined]
