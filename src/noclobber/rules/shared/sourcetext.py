"""The syntax at a site: which statement and call of the file an instruction belongs to, and spans back from nodes."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from noclobber.model.source import Site, Span

Placed = ast.stmt | ast.expr | ast.keyword
"""Nodes that know their place in the text and of which a path is made."""
Path = tuple[Placed, ...]


def path_to(site: Site | None) -> Path:
    """The nodes from a statement of the file down to the smallest node that covers the site; empty where unknown."""
    return () if site is None else path_at(text_of(site), site.span())


def path_at(text: str, span: Span) -> Path:
    """The same for a span of a text."""
    tree = parsed(text)
    if tree is None:
        return ()
    lines = text.split("\n")
    path: list[Placed] = []
    below: ast.AST | None = tree
    while below is not None:
        below = next((one for one in _placed(below) if _covers(lines, one, span)), None)
        if below is not None:
            path.append(below)
    return tuple(path)


def statement(path: Path) -> ast.stmt | None:
    """The simple statement of a path; None where the path ends in a compound one (its header, a decorator)."""
    found = next((one for one in reversed(path) if isinstance(one, ast.stmt)), None)
    return None if hasattr(found, "body") else found


def text_of(site: Site | None) -> str:
    """The whole source file; empty where it is missing."""
    return "" if site is None else "".join(linecache.getlines(site.code.co_filename))


def source(text: str, node: ast.expr) -> str:
    """The text of an expression, without parentheses around it."""
    return text[slice(*bounds(text, node))]


def bounds(text: str, node: Placed) -> tuple[int, int]:
    """The offsets in characters at which a node starts and ends."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    end_line, end_column = _end(node)
    return (
        starts[node.lineno - 1] + column(lines, node.lineno, node.col_offset) - 1,
        starts[end_line - 1] + column(lines, end_line, end_column) - 1,
    )


def span_of(site: Site, node: Placed) -> Span:
    """The span of a node of the site's file."""
    return span_in(site.code.co_filename, text_of(site), node)


def span_in(path: str, text: str, node: Placed) -> Span:
    """The span of a node of a text, in the file of that path."""
    lines = text.split("\n")
    end_line, end_column = _end(node)
    start = column(lines, node.lineno, node.col_offset)
    return Span(path, node.lineno, start, end_line, column(lines, end_line, end_column))


def column(lines: list[str], line: int, byte_offset: int) -> int:
    """The 1-based column in characters of an offset that `ast` counts in bytes."""
    text = lines[line - 1]
    return (byte_offset if text.isascii() else len(text.encode()[:byte_offset].decode(errors="ignore"))) + 1


def _placed(node: ast.AST) -> Iterator[Placed]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Placed):
            yield child
        else:
            yield from _placed(child)


def _covers(lines: list[str], node: Placed, span: Span) -> bool:
    end_line, end_column = _end(node)
    if node.lineno > span.line or end_line < span.end_line:
        return False
    opens = (node.lineno, column(lines, node.lineno, node.col_offset))
    closes = (end_line, column(lines, end_line, end_column))
    return opens <= (span.line, span.column) and (span.end_line, span.end_column) <= closes


def _end(node: Placed) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


@lru_cache(maxsize=16)
def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a file; None where it has none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None
