"""Writes out of place, and out of the blocks and decorators under which autograd does not see them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from noclobber.mend.candidate import Candidate
from noclobber.mend.functions import returning
from noclobber.model.finding import Edit
from noclobber.model.source import Span
from noclobber.syntax.edits import undecorated
from noclobber.syntax.names import called, last_name
from noclobber.syntax.tree import FUNCTION, WITH, With, walk
from noclobber.syntax.writes import WriteSyntax, is_in_vain, out_of_place

TITLE = "write out of place"
_GUARDS = ("no_grad", "inference_mode")
"""Blocks in which autograd records nothing."""


def rebound(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """The write with a new tensor for its result, bound to the name of the old one where the statement has no other.

    None for a write into an argument that only the caller reads; a module's hook returns the new tensor instead.
    """
    edits = out_of_place(write)
    if not is_in_vain(write, edits):
        if edits:
            yield Candidate(TITLE, tuple(edits), cost)
    elif _is_in_hook(write) and (returned := returning(write, edits)):
        yield Candidate(f"{TITLE}, and return the result from the hook", returned, cost)


def _is_in_hook(write: WriteSyntax) -> bool:
    """Return True if the function around a write is registered as a hook that may return another output of a module."""
    function = getattr(write.file.scope(write.statement), "name", None)
    hooks = (one for one in walk(write.file.tree, ast.Call) if called(one) == "register_forward_hook")
    return any(last_name(given) == function for one in hooks for given in one.args[:1])


def guarded_out_of_place(write: WriteSyntax) -> Iterator[Candidate]:
    """A write under `with torch.no_grad():`, moved out of that block and out of place, so that autograd sees it."""
    edits = out_of_place(write)
    moved = out_of_guard(write, edits)
    if edits and not is_in_vain(write, edits) and moved is not None and moved != tuple(edits):
        yield Candidate("let autograd see it: " + TITLE, moved, 1 if len(moved) == 1 else 2)


def out_of_guard(write: WriteSyntax, edits: Sequence[Edit]) -> tuple[Edit, ...] | None:
    """Edits of a write, which also take it out of the block under `no_grad` that it stands in, where it does; None
    where that cannot be done."""
    file = write.file
    block = next((one for one in file.around(write.statement) if isinstance(one, WITH) and _guards(one)), None)
    if block is None:
        return tuple(edits)
    outer, inner = file.indent(block), file.indent(block.body[0])
    if len(block.items) > 1 or outer is None or inner is None:
        return None
    if len(edits) == 1 and len(block.body) == 1 and edits[0].span == file.span(write.statement):
        return (Edit(file.span(block), edits[0].replacement),)
    head, first = file.span(block), file.span(block.body[0])
    lines = (number for number in range(first.line + 1, head.end_line + 1) if file.line(number).startswith(inner))
    shifts = [Edit(Span(file.path, number, 1, number, len(inner) - len(outer) + 1), "") for number in lines]
    header = Edit(Span(file.path, head.line, head.column, first.line, first.column), "")
    return (header, *edits, *shifts)


def _guards(block: With) -> bool:
    items = [one.context_expr for one in block.items]
    return any(last_name(one.func if isinstance(one, ast.Call) else one) in _GUARDS for one in items)


def out_of_decorator(write: WriteSyntax) -> Iterator[Candidate]:
    """A write in a function under `@torch.no_grad()`, out of place and without the decorator."""
    scope, edits = write.file.scope(write.statement), out_of_place(write)
    for one in scope.decorator_list if isinstance(scope, FUNCTION) and edits else ():
        if last_name(one.func if isinstance(one, ast.Call) else one) == "no_grad":
            yield Candidate("let autograd see it: " + TITLE, (undecorated(write.file, one), *edits), 2)
