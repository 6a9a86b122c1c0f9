"""Buffers that are filled again and again, bound to new tensors instead: `t = new` for `t.copy_(new)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.operators import RANDOM_FILLS
from noclobber.syntax.edits import remove, replace
from noclobber.syntax.names import arguments, called, dotted, reads
from noclobber.syntax.tree import last_line
from noclobber.syntax.writes import WriteSyntax, loses_write, out_of_place, seen

_LIKE = {"normal_": "randn_like", "uniform_": "rand_like", "zero_": "zeros_like"}


def rebound_fill(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """The statement `t.copy_(e)` as `t = e`, `t.normal_()` as `t = torch.randn_like(t)`, `t[:] = e` as `t = e`."""
    file, statement = write.file, write.statement
    target = seen(file.source(write.target)) if write.target is not None else ""
    if loses_write(write):
        return
    if isinstance(statement, ast.Assign) and isinstance(write.target, ast.Subscript):
        if file.source(write.target).endswith(("[:]", "[...]")) and dotted(write.target.value):
            name = seen(file.source(write.target.value))
            edit = replace(file, statement, f"{name} = {file.source(statement.value)}")
            yield Candidate(f"bind `{name}` to the new value", (edit,), cost)
        return
    call = write.call
    if call is None or not isinstance(statement, ast.Expr) or statement.value is not call or not dotted(write.target):
        return
    for text in _new(write, call, target):
        title = f"bind `{target}` to a new tensor instead of filling the old one"
        edit = replace(file, statement, f"{target} = {text}")
        gone = _cleared(write, target)
        if gone is not None:
            yield Candidate(title, (gone, edit), cost)
        yield Candidate(title, (edit,), cost)


def local_result(write: WriteSyntax, cost: int = -1) -> Iterator[Candidate]:
    """`f(a, out=self.t)` and what then reads `self.t`, as `t = f(a)`: where no other function reads that attribute.

    Bound to the attribute, the result would keep its graph alive, and make of a buffer what cannot be copied;
    so it comes before all others.
    """
    file, statement, name = write.file, write.statement, write.name
    short, edits = name.removeprefix("self."), out_of_place(write)
    is_plain = isinstance(statement, ast.Expr) and statement.value is write.call and name == f"self.{short}"
    if not is_plain or "." in short or not edits or not edits[0].replacement.startswith(f"{name} = "):
        return
    scope, end = file.scope(statement), last_line(statement)
    after = [one for one in reads(name, scope, file) if one.lineno > end]
    others = [one for one in reads(name, file.tree, file) if one not in after and one is not write.target]
    if after and not others and not any(True for _ in reads(short, scope, file)):
        bound = Edit(edits[0].span, edits[0].replacement.removeprefix("self."))
        changed = (bound, *edits[1:], *(replace(file, one, short) for one in after))
        yield Candidate(f"hold the result as `{short}`", changed, cost)


def _cleared(write: WriteSyntax, target: str) -> Edit | None:
    """Take out the `t.detach_()` or `t.zero_()` right before: a new tensor needs neither."""
    rows = write.file.block(write.statement)
    at = rows.index(write.statement)
    if at and write.file.source(rows[at - 1]) in (f"{target}.detach_()", f"{target}.zero_()"):
        return remove(write.file, rows[at - 1])
    return None


def _new(write: WriteSyntax, call: ast.Call, target: str) -> Iterator[str]:
    file, op = write.file, called(call)
    values = [file.source(one) for one in arguments(call)]
    if op == "copy_" and call.args:
        source = call.args[0]
        yield values[0]
        if isinstance(source, (ast.Name, ast.Attribute, ast.Subscript)):
            yield f"{values[0]}.clone()"
        yield f"torch.empty_like({target}).copy_({values[0]})"
    elif op in _LIKE and not values:
        yield f"torch.{_LIKE[op]}({target})"
    elif op == "fill_" and values:
        yield f"torch.full_like({target}, {values[0]})"
    elif op in RANDOM_FILLS:
        yield f"torch.empty_like({target}).{op}({', '.join(values)})"
