"""Custom Functions and hooks: new tensors instead of writes, `save_for_backward`, `mark_dirty`, the order of hooks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene
from noclobber.model.finding import Edit
from noclobber.syntax.edits import after, before, cloned_before, remove, replace
from noclobber.syntax.names import called, dotted, parameters
from noclobber.syntax.tree import FUNCTION, File, Function, Place, walk
from noclobber.syntax.writes import WriteSyntax, expression, out_of_place


def new_gradient(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """A write in a hook or backward: `lambda g: g * k`; a hook that ends in the write returns the new gradient."""
    file = write.file
    if write.call is not None and isinstance(file.scope(write.call), ast.Lambda):
        text = expression(file, write.call)
        if text:
            yield Candidate("return a new gradient", (replace(file, write.call, text),), cost)
        return
    edits, scope = out_of_place(write), file.scope(write.statement)
    if edits and isinstance(scope, FUNCTION):
        if scope.name not in ("backward", "forward") and (returned := returning(write, edits)):
            yield Candidate("return a new gradient", returned, cost)
            return
        yield Candidate("make a new tensor", tuple(edits), cost)
    edit = cloned_before(file, write.statement, write.name) if write.name else None
    if edit is not None:
        yield Candidate(f"write into a clone of `{write.name}`", (edit,), cost + 1)


def returning(write: WriteSyntax, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits of a write into an argument, after which the function, which returned nothing, returns it; none where that
    cannot be done."""
    file, scope = write.file, write.file.scope(write.statement)
    if not edits or not isinstance(scope, FUNCTION) or returns_value(scope) or write.name not in parameters(scope):
        return ()
    back = after(file, scope.body[-1], f"return {write.name}")
    if back is None:
        return ()
    text = edits[-1].replacement.partition(" = ")[2]
    if back.span.line == edits[-1].span.end_line and text:
        return (Edit(edits[-1].span, f"return {text}"),)
    return (*edits, back)


def saved_for_backward(place: Place, cost: int = 3) -> Iterator[Candidate]:
    """`ctx.x = x` as `ctx.save_for_backward(x)`, and `ctx.saved_tensors[0]` for `ctx.x`, where nothing is saved yet."""
    file, statement = place.file, place.row
    owner = file.class_of(statement)
    if not isinstance(statement, ast.Assign) or owner is None or not isinstance(statement.value, ast.Name):
        return
    stored = statement.targets[0]
    attribute = dotted(stored)
    ctx = attribute.partition(".")[0]
    mentioned = list(walk(owner, ast.Attribute))
    uses = [one for one in mentioned if dotted(one) == attribute and one is not stored]
    saves = [one for one in mentioned if one.attr in ("save_for_backward", "saved_tensors")]
    if not saves and uses and attribute.count(".") == 1:
        edits = [replace(file, statement, f"{ctx}.save_for_backward({statement.value.id})")]
        edits += [replace(file, one, f"{ctx}.saved_tensors[0]") for one in uses]
        yield Candidate("keep it with `save_for_backward`", tuple(edits), cost)


def marked_dirty(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`ctx.mark_dirty(x)` before the write in a `forward(ctx, x)`; or no write at all, and a new tensor."""
    file, scope = write.file, write.file.scope(write.statement)
    own = parameters(scope)
    if not isinstance(scope, FUNCTION) or not own or write.name not in own:
        return
    marks = [one for one in walk(scope, ast.Call) if called(one) == "mark_dirty"]
    edit = before(file, write.statement, f"{own[0]}.mark_dirty({write.name})")
    if edit is not None and not marks and own[0] == "ctx":
        yield Candidate(f"declare the write: `mark_dirty({write.name})`", (edit,), cost)
    edits, gone = out_of_place(write), [one for mark in marks if (one := remove(file, mark)) is not None]
    if edits and len(gone) == len(marks):
        yield Candidate("let the Function make a new tensor", (*edits, *gone), cost + 1)
    copied = cloned_before(file, write.statement, write.name)
    if copied is not None and not marks:
        yield Candidate("let the Function write into a clone", (copied,), cost + 1)


def tangent_in_place(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """A `jvp` that writes the tangent in place, as `forward` the input: `return t.mul_(2)` for `return t * 2`."""
    methods = {ast.Mult: "mul_", ast.Add: "add_", ast.Sub: "sub_", ast.Div: "div_"}
    for file in scene.files():
        for one in walk(file.tree, ast.Return):
            value = one.value
            if method_around(file, one) != "jvp" or not isinstance(value, ast.BinOp) or not dotted(value.left):
                continue
            if type(value.op) in methods:
                text = f"{file.source(value.left)}.{methods[type(value.op)]}({file.source(value.right)})"
                yield Candidate("write the tangent in place too", (replace(file, value, text),), cost)


def hook_later(scene: Scene, write: WriteSyntax, cost: int = 3) -> Iterator[Candidate]:
    """The registration of a hook, moved below the write that would drop it, where both are in one function."""
    for place in scene.places("create"):
        file, statement = place.file, place.row
        same = file.path == write.file.path and file.scope(statement) is file.scope(write.statement)
        gone = remove(file, statement)
        text = file.source(statement)
        if same and gone is not None and "\n" not in text and statement.lineno < write.statement.lineno:
            put = after(file, write.statement, text)
            if put is not None:
                yield Candidate("register the hook after the write", (gone, put), cost)


def method_around(file: File, node: ast.AST) -> str:
    """The name of the function around a node; empty at the top level."""
    scope = file.scope(node)
    return scope.name if isinstance(scope, FUNCTION) else ""


def returns_value(scope: Function) -> bool:
    """Whether a function returns anything."""
    return any(one.value is not None for one in walk(scope, ast.Return))
