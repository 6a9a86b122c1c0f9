"""Decides whether other names see a write. If not, a new tensor may replace the old one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.out_of_place import rebound
from noclobber.model.operators import SPLITS
from noclobber.syntax.names import called, definition, dotted, is_read_after, names_bound
from noclobber.syntax.tree import FOR, last_line
from noclobber.syntax.writes import WriteSyntax, base_of


def safely(write: WriteSyntax, cost: int) -> Iterator[Candidate]:
    """Yield the write out of place, if no other code goes on with the old tensor."""
    if is_seen_here_only(write):
        for one in rebound(write):
            yield Candidate(one.title, one.edits, cost)


def is_seen_here_only(write: WriteSyntax) -> bool:
    """Return True if, as far as the function shows, only the written name reads the new value.

    A function that writes its argument and neither returns nor uses it works for whoever holds the tensor.
    """
    file, statement = write.file, write.statement
    scope, end = file.scope(statement), last_line(statement)
    if write.call is not None and not isinstance(statement, ast.Expr):
        return True
    if not write.name or isinstance(write.base, ast.Attribute):
        return True
    loops = [one for one in file.around(statement) if isinstance(one, FOR)]
    for loop in loops:
        if write.name in names_bound(loop.target):
            whole = dotted(_taken_apart(loop.iter))
            if not whole or is_read_after(file, whole, scope, last_line(loop)):
                return False
    made = definition(file, write.base, statement)
    root = dotted(base_of(made)) if isinstance(made, (ast.Subscript, ast.Call)) and called(made) != "clone" else ""
    if root and is_read_after(file, root, scope, end):
        return False
    return is_read_after(file, write.name, scope, end) or bool(loops)


def _taken_apart(node: ast.expr) -> ast.expr | None:
    """`x` of `x.split(1)`: nobody holds these views but the loop that goes through them, and `x` itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in SPLITS:
        return base_of(node.func.value)
    return None
