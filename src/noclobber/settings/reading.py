"""The text of a file, a pipe or stdin that a person names: read to a limit, refused in plain words."""

from __future__ import annotations

import os
import sys

MOST_BYTES = 200_000_000
"""No report, baseline or traceback is as long as this; an endless file is not read to find that out."""


class Unreadable(ValueError):
    """What cannot be read, or is no text. Its text says why."""


def text_of(path: str, what: str, errors: str = "strict") -> str:
    """Return the text of a file or a pipe; `-` is stdin, and `what` is what it ought to hold. Raises Unreadable.

    `errors` is what becomes of bytes that are no text, as in `bytes.decode`.
    """
    try:
        data = _bytes_of(path)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    except ValueError:
        raise Unreadable("no file can have this name") from None
    if len(data) >= MOST_BYTES:
        raise Unreadable(f"it has {MOST_BYTES // 1_000_000} MB or more, which no {what} has")
    try:
        text = data.decode("utf-8-sig", errors)
    except UnicodeDecodeError:
        raise Unreadable("it is not text in UTF-8") from None
    if not text.strip():
        raise Unreadable(f"{'stdin' if path == '-' else 'the file'} is empty")
    return text


def _bytes_of(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(MOST_BYTES) if sys.stdin is not None else b""
    # A named pipe that nobody writes to is not waited for: opened like this, it is empty.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(handle, True)
        return file.read(MOST_BYTES)
