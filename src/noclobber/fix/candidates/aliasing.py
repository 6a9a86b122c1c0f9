"""Whether anybody but the name that is written sees a write: where not, a new tensor may take the old one's place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.clones import definition
from noclobber.fix.candidates.out_of_place import out_of_place
from noclobber.fix.candidates.syntax import called, dotted, walk
from noclobber.fix.candidates.write_syntax import WriteSyntax, base_of, is_loaded
from noclobber.fix.edits.candidate import Candidate

_APART = ("split", "chunk", "unbind", "tensor_split")


def safely(write: WriteSyntax, cost: int) -> Iterator[Candidate]:
    """Out of place, where the old tensor is not what somebody else goes on with."""
    if is_seen_here_only(write):
        for one in out_of_place(write):
            yield Candidate(one.title, one.edits, cost)


def is_seen_here_only(write: WriteSyntax) -> bool:
    """Whether, for all that the function shows, the new value is read by the name that is written, and by no other.

    A function that writes its argument and neither returns nor uses it works for whoever holds the tensor.
    """
    file, statement = write.file, write.statement
    scope, end = file.scope(statement), file.span(statement).end_line
    if write.call is not None and not isinstance(statement, cst.Expr):
        return True
    if not write.name or isinstance(write.base, cst.Attribute):
        return True
    loops = [one for one in file.ancestors(statement) if isinstance(one, cst.For)]
    for loop in loops:
        if any(one.value == write.name for one in walk(loop.target, cst.Name)):
            whole = dotted(_taken_apart(loop.iter))
            if not whole or is_loaded(file, whole, scope, file.span(loop).end_line):
                return False
    made = definition(file, write.base, statement) if write.base is not None else None
    root = dotted(base_of(made)) if isinstance(made, (cst.Subscript, cst.Call)) and called(made) != "clone" else ""
    if root and is_loaded(file, root, scope, end):
        return False
    return is_loaded(file, write.name, scope, end) or bool(loops)


def _taken_apart(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`x` of `x.split(1)`: nobody holds these views but the loop that goes through them, and `x` itself."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and called(node) in _APART:
        return base_of(node.func.value)
    return None
