"""Where a program does something: sites (code object + instruction), spans, and whose code a file is."""

from __future__ import annotations

import io
import linecache
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from types import CodeType, TracebackType


class Owner(Enum):
    """Whose code a file is. Only `USER` lines are blamed; `LIBRARY` lines are shown as `inside`."""

    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    NOCLOBBER = "noclobber"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of source text. Lines and columns are 1-based, columns count characters, the end column is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction of a code object. It holds no frame and no locals, so it extends no lifetime.

    `inside` is the library's own line when `code` (the user's) called into a library that did the work.
    """

    code: CodeType
    lasti: int
    inside: Site | None = None

    def span(self) -> Span:
        """Resolve to path, lines and columns (PEP 657). Falls back to the whole line where positions are stripped."""
        path = self.code.co_filename
        line, end_line, column, end_column = _positions(self.code, self.lasti)
        if line is None:
            line = self.code.co_firstlineno
        if end_line is None:
            end_line = line
        text = source_line(path, line)
        if column is None or end_column is None:
            stripped = text.strip()
            start = len(text) - len(text.lstrip()) + 1
            return Span(path, line, start, line, start + max(1, len(stripped)))
        end_text = text if end_line == line else source_line(path, end_line)
        return Span(path, line, characters(text, column) + 1, end_line, characters(end_text, end_column) + 1)

    @property
    def line(self) -> int:
        return self.span().line


@lru_cache(maxsize=4096)
def _positions(code: CodeType, lasti: int) -> tuple[int | None, int | None, int | None, int | None]:
    """The lines and columns of an instruction. The code object has to be run through for them, and a loop that was
    wrong in each turn asks for the same ones thousands of times. Code objects with other columns are not equal (CPython
    3.11.7; tests/model/test_source.py)."""
    return next(islice(code.co_positions(), lasti // 2, None), (None, None, None, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSite(Site):
    """A place as a report tells it: its span is known, its code object is a stand-in."""

    at: Span

    def span(self) -> Span:
        return self.at

    def __reduce__(self) -> tuple[object, ...]:
        return told_site, (self.at, self.inside)


_STAND_IN = compile("", "", "exec")


def told_site(at: Span, inside: Site | None = None) -> ToldSite:
    """Return the place of a span that a report has."""
    return ToldSite(_STAND_IN.replace(co_filename=at.path), 0, inside, at=at)


def characters(text: str, byte_column: int) -> int:
    """CPython and `ast` count columns in UTF-8 bytes; a reader counts characters."""
    if text.isascii():
        return byte_column
    return len(text.encode("utf-8", "replace")[:byte_column].decode("utf-8", "ignore"))


MOST_BYTES = 50_000_000
"""No source is as long as this: a file that is longer is none, and is not read."""


def source_line(path: str, line: int) -> str:
    """The text of a line without its newline; empty where the source is missing."""
    return linecache.getline(path, line).rstrip("\r\n") if _is_source(path) else ""


def source_text(path: str) -> str:
    """The text of a whole file; empty where the source is missing."""
    return "".join(linecache.getlines(path)) if _is_source(path) else ""


def give_source(path: str, text: str) -> None:
    """Let reports, tracebacks and `inspect` read the source of a file from a text, and never from the file. It has the
    lines that Python counts: no form feed and no separator of Unicode ends one."""
    linecache.cache[path] = (len(text), None, io.StringIO(text).readlines(), path)


def _is_source(path: str) -> bool:
    """Return False for what a report may name and nobody should read: a device, a pipe, a file without end."""
    if path in linecache.cache:
        return True
    try:
        about = os.stat(path)
    except ValueError:  # no file can have this name
        return False
    except OSError:  # a name that only `linecache` knows, such as that of a module in a zip file
        return True
    return stat.S_ISREG(about.st_mode) and about.st_size <= MOST_BYTES


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY_ROOTS = tuple(os.path.normpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_INTERACTIVE = ("<stdin>", "<console>", "<ipython-input", "<doctest")
_GENERATED = ("<frozen ", "<attrs generated ", "<eval_with_key>", "<decorator-gen-", "<makefun-gen-", "<beartype(")
"""What libraries call code that they write themselves; most of them show its text, as attrs and torch.fx do."""
PASSED_OVER = "<noclobber, like importlib._bootstrap>"
"""The file name of noclobber's own frames that stand between two of the program's. Warnings and logging count frames up
to the one that they blame, and pass over those whose file name has both words: the frames of an import (CPython 3.11 to
3.14; tests/observe/core/test_warnings.py)."""
_owners: dict[str, Owner] = {"sys": Owner.LIBRARY, PASSED_OVER: Owner.NOCLOBBER}
"""What is known already. `sys` is Python's own name, in warnings, for what is above a program's first frame."""


def owner_of(path: str) -> Owner:
    """Whose code a file is, from its `co_filename`. Cached: this is asked on every recorded event."""
    known = _owners.get(path)
    if known is None:
        known = _owner_of(path)
        if is_settled(path, known):
            _owners[path] = known
    return known


def is_settled(path: str, owner: Owner) -> bool:
    """Whether a file stays whose it is: the text of a pseudo file may be shown later, and then it is the user's."""
    return owner is not Owner.LIBRARY or not path.startswith("<") or path.startswith(_GENERATED)


def cell_of(path: str) -> str:
    """Return what a notebook calls the code of a file: "Cell In[2]"; empty for a file that is no cell of it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # IPython has it since 8.0, for the lines of its own tracebacks (tests/integrations/test_notebooks.py).
    known = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(path)
    return " ".join(known) if known else ""


def claim_for_user(path: str) -> None:
    """Declare a pseudo file, such as the `<string>` of `-c`, to be the user's own code."""
    _owners[path] = Owner.USER


def _owner_of(path: str) -> Owner:
    if path.startswith("<"):
        if path.startswith(_GENERATED):
            return Owner.LIBRARY
        return Owner.USER if path.startswith(_INTERACTIVE) or path in linecache.cache else Owner.LIBRARY
    path = os.path.normpath(path)
    if path.startswith(_HERE):
        return Owner.NOCLOBBER
    if any(path.startswith(root) for root in _torch_roots()):
        return Owner.TORCH
    if any(folder in path for folder in _PACKAGE_FOLDERS) or path.startswith(_LIBRARY_ROOTS):
        return Owner.LIBRARY
    return Owner.USER


def _torch_roots() -> Iterator[str]:
    for name in ("torch", "functorch", "torchgen"):
        yield from (os.path.normpath(root) + os.sep for root in getattr(sys.modules.get(name), "__path__", ()))


def site_of_traceback(traceback: TracebackType | None) -> Site | None:
    """Return the innermost place in the user's code that an exception passed through; else the innermost of a library.

    None where it passed through neither.
    """
    found: Site | None = None
    inside: Site | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        owner = owner_of(code.co_filename)
        if owner is Owner.USER:
            found, inside = Site(code, traceback.tb_lasti), None
        elif owner is Owner.LIBRARY and not is_plumbing(code.co_filename):
            inside = Site(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    if found is None:
        return inside
    return Site(found.code, found.lasti, inside)


def is_plumbing(path: str) -> bool:
    """The standard library and generated code carry calls along; their lines explain nothing to a reader."""
    return path.startswith("<") or not any(folder in path for folder in _PACKAGE_FOLDERS)
