"""A file of the program as text and syntax: what stands where, what is around it, and edits to it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from noclobber.model.finding import Edit
from noclobber.model.source import Owner, Span, owner_of
from noclobber.rules.shared.editing import indent_of
from noclobber.rules.shared.sourcetext import Path, Placed, parsed, path_at, source, span_in

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
LONGEST = 200_000
"""Characters of a file that is read: at this length it takes about a second."""


@dataclass(frozen=True, eq=False)
class File:
    """A file of the user's own. `above` gives the node around each node."""

    path: str
    text: str
    tree: ast.Module
    above: dict[ast.AST, ast.AST]

    def at(self, span: Span) -> Path:
        """The nodes from a statement of the module down to the smallest node that covers a span."""
        return path_at(self.text, span)

    def source(self, node: ast.expr) -> str:
        """The text of an expression."""
        return source(self.text, node)

    def edit(self, node: Placed, replacement: str) -> Edit:
        """Replace a node."""
        return Edit(span_in(self.path, self.text, node), replacement)

    def line_before(self, node: ast.stmt, line: str) -> Edit | None:
        """Put a line before a statement; None where something else shares the statement's line."""
        blanks = indent_of(self.text, node)
        if blanks is None:
            return None
        column = len(blanks) + 1
        return Edit(Span(self.path, node.lineno, column, node.lineno, column), f"{line}\n{blanks}")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while node in self.above:
            node = self.above[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function, or the module, whose names a node uses."""
        return next(one for one in self.around(node) if isinstance(one, Scope))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The simple statement that a node is part of; None for what is in a compound one's head."""
        found = node if isinstance(node, ast.stmt) else next(o for o in self.around(node) if isinstance(o, ast.stmt))
        return None if hasattr(found, "body") else found

    def block(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements that a statement stands among."""
        return next(rows for rows in _blocks(self.above[node]) if node in rows)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node within its scope, the innermost first."""
        scope = self.scope(node)
        return [one for one in self.around(node) if isinstance(one, Loop) and self.scope(one) is scope]

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node's method belongs to."""
        return next((one for one in self.around(node) if isinstance(one, ast.ClassDef)), None)


def file_at(path: str) -> File | None:
    """A file as it was when the program ran; None for a library's, for one that is missing, too long or no Python."""
    text = "".join(linecache.getlines(path))
    return None if not text or len(text) > LONGEST or owner_of(path) is not Owner.USER else _file(path, text)


@lru_cache(maxsize=8)
def _file(path: str, text: str) -> File | None:
    tree = parsed(text)
    if tree is None:
        return None
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return File(path, text, tree, above)


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        yield child
        yield from within(child)


def nested(scope: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes that stand in a scope."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
        else:
            yield from nested(child)


def starts(node: Placed) -> tuple[int, int]:
    """The line and the offset in it at which a node starts."""
    return node.lineno, node.col_offset


def ends(node: Placed) -> tuple[int, int]:
    """The same for its end."""
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        rows = getattr(node, name, None)
        if isinstance(rows, list):
            yield rows
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from _blocks(part)
