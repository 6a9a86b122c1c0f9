"""When colour is wanted, how wide a line may be, and which colours a finding has."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from noclobber.render import window
from noclobber.render.formats.terminal import patch_line, summary_line
from noclobber.render.window.color import wanted, width_of

from .catalogue import hint, stale_save


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FILE, TERMINAL = io.StringIO(), Terminal()


@pytest.mark.parametrize(
    ("environ", "on_terminal", "on_file"),
    [
        ({}, True, False),
        ({"TERM": "xterm-256color"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": ""}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": "0"}, False, False),  # no-color.org: any value but the empty one
        ({"NO_COLOR": ""}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"PYTHON_COLORS": "1", "NO_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"PYTHON_COLORS": "0", "FORCE_COLOR": "1"}, False, False),
        ({"PYTHON_COLORS": "yes"}, True, False),
    ],
)
def test_wanted(environ: dict[str, str], on_terminal: bool, on_file: bool) -> None:
    assert wanted(TERMINAL, environ) is on_terminal
    assert wanted(FILE, environ) is on_file


def test_no_stream_and_a_closed_stream_want_no_colour() -> None:
    closed = io.StringIO()
    closed.close()
    assert not wanted(None, {})
    assert not wanted(closed, {})


def test_width() -> None:
    assert width_of(None, {}) is None
    assert width_of(FILE, {}) is None
    assert width_of(FILE, {"COLUMNS": "60"}) == 60
    assert width_of(FILE, {"COLUMNS": "0"}) is None
    assert width_of(FILE, {"COLUMNS": "wide"}) is None
    assert width_of(TERMINAL, {}) is None, "says that it is a terminal, and has no descriptor"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize(("columns", "expected"), [(200, 200), (95, 95), (50, 50), (0, 80)])
def test_width_of_a_terminal(columns: int, expected: int | None) -> None:
    import fcntl
    import struct
    import termios

    parent, child = os.openpty()
    with os.fdopen(parent, "wb"), os.fdopen(child, "w") as stream:
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        assert width_of(stream, {}) == expected


def test_the_colours_of_an_error() -> None:
    text = window(stale_save, color=True)
    assert text.startswith("\x1b[1;31merror[NC101]\x1b[0m\x1b[1m: in-place write")
    assert "\x1b[1;31m^^^^^^^^^^^^^^^\x1b[0m" in text
    assert "\x1b[1;34m---------------\x1b[0m" in text
    assert "\x1b[1;34m 7 | \x1b[0mh = torch.sigmoid(w(x))\n" in text, "source is never coloured"
    assert "\x1b[31m- h += x.detach()\x1b[0m" in text
    assert "\x1b[32m+ h = h + x.detach()\x1b[0m" in text


def test_a_hint_is_not_red() -> None:
    text = window(hint, color=True)
    assert text.startswith("\x1b[1;36mhint[NC902]\x1b[0m")
    assert "\x1b[1;31m" not in text


def test_rich_waits_until_there_is_something_to_draw() -> None:
    """`noclobber run` must start fast, and pays for rich only when it has a window to show."""
    code = "import sys, noclobber.render, noclobber.render.window.color; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("width", [40, 60, 79, 80])
def test_words_are_broken_between_words_to_the_width(width: int) -> None:
    wide, narrow = window(stale_save), window(stale_save, width=width)
    words = [line for line in narrow.splitlines() if "|" not in line]
    assert max(map(len, words)) <= max(width, len("note: ") + 40)
    assert sorted(narrow.replace("|", " ").split()) == sorted(wide.replace("|", " ").split())


def test_the_summary_of_fix_has_the_colours_of_a_report() -> None:
    assert summary_line("NC101 a.py:1: in-place", "error", color=True) == "\x1b[1;31mNC101\x1b[0m a.py:1: in-place"
    assert summary_line("  fix: write", "", color=True) == "  \x1b[1;36mfix\x1b[0m: write"
    assert summary_line("  only the author", "", color=True) == "  only the author"
    assert patch_line("+x = 1", color=True) == "\x1b[32m+x = 1\x1b[0m"
    assert patch_line("+x = 1", color=False) == "+x = 1"
