"""Writes to leaves: under `torch.no_grad()` where weights are set, into a clone where the gradient should flow."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.clones import cloned_argument
from noclobber.mend.functions import returns_value
from noclobber.syntax.edits import cloned_before, insert, under_no_grad
from noclobber.syntax.names import called, is_read_after, is_untracked
from noclobber.syntax.tree import FUNCTION, File, Place, last_line, walk
from noclobber.syntax.updates import is_of_gradients
from noclobber.syntax.writes import WriteSyntax, write_at, writes

TITLE = "write inside `with torch.no_grad():`"


def guarded(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """Put the statement, and the writes after it, under `with torch.no_grad():`; or the whole function.

    Not if the written value comes from a call that may give a tracked tensor: that gradient would be lost.
    """
    file, found = write.file, write.statement
    if hasattr(found, "body") or file.own_lines(found) is None or is_tracked(write):
        return
    rows = [found, *_following(file, found, write.name)]
    if len(rows) > 1:
        yield Candidate(TITLE, under_no_grad(file, rows), cost - 1)
    yield Candidate(TITLE, under_no_grad(file, [found]), cost)
    scope = file.scope(found)
    if isinstance(scope, FUNCTION) and not returns_value(scope):
        at = scope.decorator_list[0].lineno if scope.decorator_list else scope.lineno
        decorator = insert(file, at, 1, f"{file.indent(scope) or ''}@torch.no_grad()\n")
        yield Candidate(f"put `{scope.name}` under `torch.no_grad()`", (decorator,), cost + 1)


def cloned_leaf(write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """`x = x.clone()` before the write, or a clone where the view of the leaf is made, so that the gradient flows."""
    file, name, found = write.file, write.name, write.statement
    is_read = is_read_after(file, name, file.scope(found), last_line(found))
    if write.base is None or not is_read or name.startswith("self.") or ".grad" in file.source(found):
        return
    edit = cloned_before(file, found, name)
    if edit is not None:
        yield Candidate(f"write into a clone of `{name}`, so that the gradient flows", (edit,), cost)
    yield from cloned_argument(write, cost)


def is_update(write: WriteSyntax, kind: str) -> bool:
    """Whether a write is one that no gradient should flow through: of weights, with `.grad`, or of mere numbers.

    Where the program differentiates through its own updates (`create_graph`), it is none.
    """
    text = write.file.source(write.statement)
    if "create_graph" in write.file.text and ".grad" not in text:
        return False
    value = _value(write)
    given: list[ast.expr] = [value] if value is not None else []
    if isinstance(value, ast.Call) and writes(value):
        given = [*value.args, *(one.value for one in value.keywords)]
    if kind == "parameter" or ".grad" in text or (value is not None and is_of_gradients(write.file, value)):
        return True
    return not any(True for one in given for _ in walk(one, ast.Name))


def is_tracked(write: WriteSyntax) -> bool:
    """Whether the value written may carry a gradient: a call of a module, of a function that is not known.

    What is computed from a `.grad` carries none, unless the program differentiates through its gradients.
    """
    value = _value(write)
    calls = [one for one in walk(value, ast.Call) if not writes(one)] if value is not None else []
    if "create_graph" not in write.file.text:
        calls = [one for one in calls if ".grad" not in write.file.source(one)]
    return not all(map(is_untracked, calls))


def _value(write: WriteSyntax) -> ast.expr | None:
    found = write.statement
    return found.value if isinstance(found, (ast.Assign, ast.AugAssign)) else write.call


def _following(file: File, row: ast.stmt, name: str) -> list[ast.stmt]:
    """Return the next statements that are such updates too, or write the same tensor: `w -= ...`, then `b -= ...`."""
    siblings = file.block(row)
    found: list[ast.stmt] = []
    for one in siblings[siblings.index(row) + 1 :]:
        call = one.value if isinstance(one, ast.Expr) else None
        stores = isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript)
        calls = isinstance(call, ast.Call) and writes(call) and not called(call).endswith("requires_grad_")
        if not (stores or calls or isinstance(one, ast.AugAssign)) or file.own_lines(one) is None:
            break
        other = write_at(Place(file, one))
        if not (other.name == name or is_update(other, "")):
            break
        found.append(one)
    return found
