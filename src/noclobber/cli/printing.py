"""What noclobber prints, it prints here: on stdout, or on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from io import TextIOWrapper
from typing import IO

from noclobber.render.text import visible

REFUSED = 2
"""The exit status for a command that cannot be carried out; argparse uses the same."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells count it."""
MOST_SHOWN = 400
"""Characters of an error. Of a longer one, as where an option has a value of many kilobytes, both ends are shown."""


class StdoutFailed(Exception):
    """Stdout takes no text. Its text says why; it has none if the reader, such as `head`, has seen enough."""


def out(text: str, *, raw: bool = False) -> None:
    """Print on stdout, at once. `raw`: as bytes, those too that are no text. Raises StdoutFailed."""
    try:
        if raw and isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        else:
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(errors="backslashreplace")  # a line may hold what this terminal cannot show
            sys.stdout.write(text)
        sys.stdout.flush()
    except (AttributeError, ValueError):
        raise StdoutFailed("it is closed") from None
    except OSError as error:
        # The interpreter flushes once more at its end: give it a place.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StdoutFailed(*([] if isinstance(error, BrokenPipeError) else [error.strerror])) from None


def say(*lines: str) -> None:
    """Print lines on stderr. Nothing in them acts on a terminal, whatever a file name or an option holds."""
    for line in lines:
        put(f"{visible(line)}\n", sys.stderr)


def put(text: str, stream: IO[str] | None) -> None:
    """Print on stderr, or on what was stderr before the program ran."""
    # The stream may be closed, or its reader may be gone: then nobody can read this.
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.write(text)
            stream.flush()


def keep_closed() -> None:
    """Keep the numbers of streams that are closed from the files that noclobber opens."""
    with contextlib.suppress(OSError):
        while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(file, True)
        os.close(file)


def refuse(why: str) -> int:
    """Say why a command cannot be carried out; return its exit status."""
    say(f"noclobber: error: {cut(why)}")
    return REFUSED


def cut(text: str) -> str:
    """Return both ends of a text that is too long to be read."""
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[: MOST_SHOWN // 2]} ... {text[-MOST_SHOWN // 2 :]}"
