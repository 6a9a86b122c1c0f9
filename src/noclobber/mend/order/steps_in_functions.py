"""A step and a backward in two functions: the order is changed where these functions are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.order.steps import does_more, end_of_update, later_step, statements_in, together
from noclobber.mend.scene import Scene
from noclobber.model.finding import Cure
from noclobber.syntax.edits import (
    after,
    insert,
    lines_of,
    remove,
    text_of_lines,
    whole_lines,
    with_argument,
    with_comment,
    without_retaining,
)
from noclobber.syntax.names import called, calls, dotted, keyword, optimizer_of, owner, parameters, uses
from noclobber.syntax.tree import FUNCTION, File, Place, Scope, last_line


def across(scene: Scene) -> Iterator[Change]:
    """Changes where a function of the step, of the backward, or of each is called in a block."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None or step.file is not read.file or not scene.steps():
        return
    file = step.file
    here, there = file.scope(step.row), file.scope(read.row)
    for one, other in _pairs(file, step, read, here, there):
        rows, first, second = together(file, one, other)
        if not rows or first >= second:
            continue
        if any(map(does_more, rows[first + 1 : second])):
            return
        if here is not there:
            yield from _moved(step, read, one, rows, second)
        yield from _swapped(step, read, rows, first, second, same=here is there)
        return


def _pairs(file: File, step: Place, read: Place, here: Scope, there: Scope) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes that stand for the step and for the backward: themselves, or calls of the functions that they are in."""
    stepping, backing = (calls(file.tree, getattr(scope, "name", "")) for scope in (here, there))
    if here is not there:
        yield from ((step.row, call) for call in backing if file.scope(call) is here)
        yield from ((call, read.row) for call in stepping if file.scope(call) is there)
    for one in stepping:
        yield from ((one, other) for other in backing if one is not other and file.scope(one) is file.scope(other))


def _swapped(
    step: Place, read: Place, rows: list[ast.stmt], first: int, second: int, *, same: bool
) -> Iterator[Change]:
    """Swap the calls of two updates; the one that then runs first keeps the graph."""
    file, end = step.file, end_of_update(rows, second)
    begin, stop, target = lines_of(file, rows[first + 1])[0], last_line(rows[end]), lines_of(file, rows[first])[0]
    text = text_of_lines(file, begin, stop)
    edits = (insert(file, target, 1, text + "\n"), whole_lines(file, begin, stop))
    title = "make the later update first"
    if not same:
        backwards = calls(file.scope(step.row), "backward")
        retained = [edit for one in backwards if (edit := without_retaining(file, one)) is not None]
        call = file.nearest(read.node, ast.Call)
        if retained and call is not None and called(call) == "backward" and keyword(call, "retain_graph") is None:
            yield Change(title, (*edits, *retained, with_argument(file, call, "retain_graph=True")), 4, Cure.LATER)
    yield Change(title, edits, 4, Cure.LATER)


def _moved(step: Place, read: Place, stands: ast.AST, rows: list[ast.stmt], second: int) -> Iterator[Change]:
    """The step taken out of its function and made where that is called, after the later backward."""
    file = step.file
    gone, text = remove(file, step.row), with_comment(file, step.row)
    if stands is not step.row:
        text = _in_caller(file, step, stands, text)
    put = after(file, rows[second], text) if text and "\n" not in text else None
    if gone is None or put is None:
        return
    later = [*_behind(file, read), *(one for row in rows[second + 1 :] for one in statements_in(row))]
    yield from later_step(step, read, next((name for one in later if (name := optimizer_of(one))), ""), gone, put)


def _behind(file: File, read: Place) -> list[ast.stmt]:
    """The statements after the backward in its own function."""
    scope = file.scope(read.row)
    if not isinstance(scope, FUNCTION):
        return []
    return [one for one in statements_in(scope) if one.lineno > read.row.lineno]


def _in_caller(file: File, step: Place, stands: ast.AST, text: str) -> str:
    """The text of a step as the caller of its function would write it; empty where that is not plain."""
    scope, root = file.scope(step.row), optimizer_of(step.row).partition(".")[0]
    call = stands if isinstance(stands, ast.Call) else None
    if call is None or not root:
        return ""
    own = parameters(scope)
    of = owner(call)
    if root == "self":
        return text.replace("self.", f"{dotted(of)}.") if dotted(of) else ""
    if root not in own:
        return "" if uses(scope, root, ast.Store) else text
    named = keyword(call, root)
    at = own.index(root) - (of is not None and own[:1] == ["self"])
    given = named.value if named is not None else call.args[at] if at < len(call.args) else None
    return f"{dotted(given)}{text.removeprefix(root)}" if dotted(given) and text.startswith(root) else ""
