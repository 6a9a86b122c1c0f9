"""Where a report goes: `-f`, `-o`, and files that are written whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import os

FORMATS = ("full", "concise", "github", "sarif", "junit", "json", "html")
SEPARATORS = tuple({"/", os.sep})


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `-f`."""
    known = f"full (default), {', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
    parser.add_argument("-f", "--format", choices=FORMATS, default="full", metavar="FORMAT", help=known)


def file_name(text: str) -> str:
    """Return the value of `-o`."""
    if text == "-":
        raise argparse.ArgumentTypeError("`-` is not a file: leave `-o` out, or write `./-`")
    return text


def here() -> str:
    """Return the current folder; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def real(path: str) -> str:
    """Return where a file lies; what was typed if nobody knows, as the current folder was removed."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def unwritable(path: str) -> str:
    """Return why a file cannot be written, without trying; empty if it can."""
    folder = os.path.dirname(path) or os.curdir
    if "\0" in path:
        return "no file can have this name"
    if not os.path.isdir(folder):
        return f"there is no folder `{folder}`"
    if os.path.isdir(path):
        return "it is a folder"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "permission denied"
    return ""


def unusable(folder: str) -> str:
    """Return why no file can be written into a folder, which is made if it is missing; empty if one can."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"


def unwritten(path: str, text: str) -> str:
    """Write a file whole or not at all; return why it could not be written, empty if it could."""
    try:
        write(path, text)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def write(path: str, text: str) -> None:
    """Write a file whole or not at all. Devices and pipes, which nothing can take the place of, are written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        return
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        with open(unfinished, "x", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
