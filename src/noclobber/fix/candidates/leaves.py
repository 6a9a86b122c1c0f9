"""Writes to leaves: under `torch.no_grad()` where weights are set, into a clone where the gradient should flow."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.clones import cloned_argument
from noclobber.fix.candidates.finding_source import Place
from noclobber.fix.candidates.syntax import ParsedFile, before, block, called, dotted, small, walk
from noclobber.fix.candidates.write_syntax import WriteSyntax, is_loaded, write_at, writes
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.source import Span

TITLE = "write inside `with torch.no_grad():`"
BEFORE_SUGGESTED = -1
"""The cost of one block for several updates, which is better than a block for each, as the rule suggests."""
_NUMBERS = {
    "item", "size", "numel", "len", "float", "int", "log", "sqrt", "range", "randn", "rand", "zeros", "ones", "full",
    "tensor", "arange", "randn_like", "rand_like", "zeros_like", "ones_like", "eye", "linspace", "numpy",
}  # fmt: skip


def guarded(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """The statement, with those behind it that write as well, under `with torch.no_grad():`; or the whole function.

    Not where the value written comes of a call that may give a tracked tensor: that gradient would be lost.
    """
    file = write.file
    line = file.around(write.statement, cst.SimpleStatementLine)
    if line is None or file.indent(line) is None or is_tracked(write):
        return
    if file.indent(small(file, write.statement) or line) is None:
        return
    rows = [line, *_following(file, line, write.name)]
    if len(rows) > 1:
        yield Candidate(TITLE, tuple(_guard(file, rows)), BEFORE_SUGGESTED)
    yield Candidate(TITLE, tuple(_guard(file, [line])), cost)
    scope = file.scope(line)
    if isinstance(scope, cst.FunctionDef) and not _returns(scope):
        indent, span = file.indent(scope) or "", file.span(scope)
        at = file.line(scope.decorators[0]) if scope.decorators else span.line
        decorator = Edit(Span(file.path, at, 1, at, 1), f"{indent}@torch.no_grad()\n")
        yield Candidate(f"put `{scope.name.value}` under `torch.no_grad()`", (decorator,), cost + 1)


def cloned_leaf(write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """`x = x.clone()` before the write, or a clone where the view of the leaf is made, so that the gradient flows."""
    file, name = write.file, write.name
    root, end = write.base, file.span(write.statement).end_line
    if root is None or not is_loaded(file, name, file.scope(write.statement), end) or _is_gradient_step(write):
        return
    if name.startswith("self."):
        return
    edit = before(file, write.statement, f"{name} = {name}.clone()")
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
    statement = write.statement
    value = statement.value if isinstance(statement, (cst.Assign, cst.AugAssign)) else write.call
    if isinstance(value, cst.Call) and writes(value):
        names = [one for arg in value.args for one in walk(arg.value, cst.Name)]
    else:
        names = list(walk(value, cst.Name)) if value is not None else []
    return kind == "parameter" or ".grad" in text or not names


def is_tracked(write: WriteSyntax) -> bool:
    """Whether the value written may carry a gradient: a call of a module, of a function that is not known.

    What is computed from a `.grad` carries none, unless the program differentiates through its gradients.
    """
    statement = write.statement
    value = statement.value if isinstance(statement, (cst.Assign, cst.AugAssign)) else write.call
    if value is None:
        return False
    calls = [one for one in walk(value, cst.Call) if not writes(one)]
    if "create_graph" not in write.file.text:
        calls = [one for one in calls if ".grad" not in write.file.source(one)]
    return any(
        called(one) not in _NUMBERS and not dotted(one.func).startswith(("math.", "np.", "random.")) for one in calls
    )


def _is_gradient_step(write: WriteSyntax) -> bool:
    return ".grad" in write.file.source(write.statement)


def _following(file: ParsedFile, line: cst.SimpleStatementLine, name: str) -> list[cst.SimpleStatementLine]:
    """The statements right behind a write that are such updates too, or write the same: `w -= ...`, then `b -= ...`."""
    siblings = list(block(file.parents[line]))
    found: list[cst.SimpleStatementLine] = []
    for one in siblings[siblings.index(line) + 1 :] if line in siblings else []:
        inner = one.body[0] if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 else None
        call = inner.value if isinstance(inner, cst.Expr) else None
        stores = isinstance(inner, cst.Assign) and isinstance(inner.targets[0].target, cst.Subscript)
        calls = isinstance(call, cst.Call) and writes(call) and not called(call).endswith("requires_grad_")
        if inner is None or not (stores or calls or isinstance(inner, cst.AugAssign)):
            break
        other = write_at(Place(file, inner))
        if not isinstance(one, cst.SimpleStatementLine) or not (other.name == name or is_update(other, "")):
            break
        found.append(one)
    return found


def _guard(file: ParsedFile, rows: list[cst.SimpleStatementLine]) -> list[Edit]:
    indent, first, deeper = file.indent(rows[0]) or "", file.span(rows[0]), file.module.default_indent
    here = Span(file.path, first.line, first.column, first.line, first.column)
    edits = [Edit(here, f"with torch.no_grad():\n{indent}{deeper}")]
    for one in rows:
        span = file.span(one)
        for number in range(span.line if one is not rows[0] else span.line + 1, span.end_line + 1):
            edits.append(Edit(Span(file.path, number, 1, number, 1), deeper))
    return edits


def _returns(scope: cst.FunctionDef) -> bool:
    return any(one.value is not None for one in walk(scope.body, cst.Return))
