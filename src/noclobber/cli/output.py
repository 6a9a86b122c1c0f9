"""Where a report goes: `-f`, `-o`, and files that are written whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import os

FORMATS = ("full", "concise", "github", "sarif", "junit", "json", "html")
SEPARATORS = tuple({"/", os.sep})
_ENDINGS = {
    ".html": ("html",),
    ".json": ("json", "sarif"),
    ".sarif": ("sarif",),
    ".xml": ("junit",),
    ".txt": ("full", "concise", "statistics", "github"),
}
"""The formats that a file of this ending may hold; the first one where `-f` says nothing."""


def add_format(parser: argparse.ArgumentParser) -> None:
    known = f"full (default), {', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-f", "--format", choices=FORMATS, metavar="FORMAT", help=f"{known}; or what `-o` ends in")
    how.add_argument(
        "--statistics", dest="format", action="store_const", const="statistics",
        help="count the findings of each code instead, and their files",
    )  # fmt: skip


def settle_format(options: argparse.Namespace) -> None:
    """Choose the format by the ending of the file of `-o` where `-f` is missing. Refuse a contradiction of both."""
    output = options.output or ""
    fitting = () if os.path.isdir(output) else _ENDINGS.get(os.path.splitext(output)[1].lower(), ())
    if options.format is None:
        options.format = fitting[0] if fitting else FORMATS[0]
    elif fitting and options.format not in fitting:
        options.parser.error(
            f"`{asked(options.format)}` and `-o {output}` contradict each other: leave one out, or rename the file"
        )


def asked(format: str) -> str:
    """Return how a format is asked for."""
    return "--statistics" if format == "statistics" else f"-f {format}"


def file_name(text: str) -> str:
    """Return the value of `-o`, which is no program: that would be lost."""
    if text == "-":
        raise argparse.ArgumentTypeError("`-` is not a file: leave `-o` out, or write `./-`")
    if text.endswith(".py"):
        raise argparse.ArgumentTypeError(f"`{text}` is the name of a program, and would be overwritten")
    return text


def unwritable(path: str) -> str:
    """Return why a file cannot be written, without trying; empty if it can."""
    folder = os.path.dirname(path) or os.curdir
    if "\0" in path:
        return "no file can have this name"
    if not os.path.isdir(folder):
        return f"there is no folder `{folder}`"
    if os.path.isdir(path):
        return "it is a folder"
    return _denied(path if os.path.exists(path) else folder, os.W_OK)


def _denied(path: str, mode: int) -> str:
    """Return why a file or a folder cannot be written; empty if it can."""
    if os.access(path, mode):
        return ""
    is_read_only = hasattr(os, "statvfs") and os.statvfs(path).f_flag & os.ST_RDONLY
    return "the file system is read-only" if is_read_only else "permission denied"


def unusable(folder: str) -> str:
    """Return why no file can be written into a folder, which is made if it is missing; empty if one can."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return _denied(folder, os.W_OK | os.X_OK)


def unwritten(path: str, text: str, *, errors: str = "backslashreplace") -> str:
    """Write a file whole or not at all; return why it could not be written, empty if it could.

    Devices and pipes, which nothing can take the place of, are written to.
    """
    is_special = os.path.exists(path) and not os.path.isfile(path)
    unfinished = path if is_special else f"{path}.{os.getpid()}.unfinished"
    try:
        with open(unfinished, "w" if is_special else "x", encoding="utf-8", errors=errors) as stream:
            stream.write(text)
        if not is_special:
            os.replace(unfinished, path)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        if not is_special:
            with contextlib.suppress(OSError):  # it has the name that it is to have
                os.unlink(unfinished)
    return ""
