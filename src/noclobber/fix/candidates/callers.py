"""A step and a backward in functions of their own: the order changed where these are called."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.step_order import (
    calls_in,
    end_of_update,
    later_step,
    optimizer,
    statements_in,
    together,
    whole_lines,
)
from noclobber.fix.candidates.syntax import ParsedFile, after, called, dotted, remove, top, walk, with_comment
from noclobber.fix.candidates.write_syntax import keyword, parameters, unretained, with_argument
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.source import Span


def across(scene: Scene) -> Iterator[Candidate]:
    """Candidates where a function of the step, of the backward, or of each is called in a block."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None or step.file is not read.file:
        return
    file = step.file
    here, there = file.scope(step.statement), file.scope(read.statement)
    for one, other in _pairs(file, step, read, here, there):
        rows, first, second = together(file, one, other)
        if not rows or first >= second:
            continue
        if here is not there:
            yield from _moved(step, read, one, rows, second)
        yield from _swapped(step, read, rows, first, second, same=here is there)
        return


def _pairs(
    file: ParsedFile, step: Place, read: Place, here: cst.CSTNode, there: cst.CSTNode
) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Nodes that stand for the step and for the backward: themselves, or calls of the functions that they are in."""
    stepping = _callers(file, here)
    backing = stepping if here is there else _callers(file, there)
    if here is not there:
        yield from ((step.statement, call) for call in backing if file.scope(call) is here)
        yield from ((call, read.statement) for call in stepping if file.scope(call) is there)
    for one in stepping:
        yield from ((one, other) for other in backing if one is not other and file.scope(one) is file.scope(other))


def _callers(file: ParsedFile, scope: cst.CSTNode) -> list[cst.Call]:
    if not isinstance(scope, cst.FunctionDef):
        return []
    return [one for one in walk(file.module, cst.Call) if called(one) == scope.name.value]


def _swapped(
    step: Place, read: Place, rows: list[cst.CSTNode], first: int, second: int, *, same: bool
) -> Iterator[Candidate]:
    """What calls the later update before what calls the earlier one; the first of them then keeps the graph."""
    file, end = step.file, end_of_update(step.file, rows, second)
    begin, stop, target = top(file, rows[first + 1]), file.span(rows[end]).end_line, top(file, rows[first])
    text = file.text[file.offset(begin, 1) : file.offset(*file.end_of_line(stop))]
    edits = (Edit(Span(file.path, target, 1, target, 1), text + "\n"), whole_lines(file, begin, stop))
    title = "make the later update first"
    if not same:
        backwards = [one for one in calls_in(file.scope(step.statement)) if called(one) == "backward"]
        retained = [edit for one in backwards if (edit := unretained(file, one)) is not None]
        call = file.around(read.node, cst.Call)
        if retained and call is not None and called(call) == "backward" and keyword(call, "retain_graph") is None:
            yield Candidate(title, (*edits, *retained, with_argument(file, call, "retain_graph=True")), 4)
    yield Candidate(title, edits, 4)


def _moved(step: Place, read: Place, stands: cst.CSTNode, rows: list[cst.CSTNode], second: int) -> Iterator[Candidate]:
    """The step taken out of its function and made where that is called, after the later backward."""
    file = step.file
    gone, text = remove(file, step.statement), with_comment(file, step.statement)
    if stands is not step.statement:
        text = _in_caller(file, step, stands, text)
    row = rows[second]
    last = row.body[0] if isinstance(row, cst.SimpleStatementLine) else row
    put = after(file, last, text) if text and "\n" not in text else None
    if gone is None or put is None:
        return
    later = [*_behind(file, read), *(one for row in rows[second + 1 :] for one in statements_in(row))]
    yield from later_step(read, next((name for one in later if (name := optimizer(one))), ""), gone, put)


def _behind(file: ParsedFile, read: Place) -> list[cst.CSTNode]:
    """The statements after the backward in its own function."""
    scope = file.scope(read.statement)
    if not isinstance(scope, cst.FunctionDef):
        return []
    return [one for one in statements_in(scope) if file.line(one) > file.line(read.statement)]


def _in_caller(file: ParsedFile, step: Place, stands: cst.CSTNode, text: str) -> str:
    """The text of a step as the caller of its function would write it; empty where that is not plain."""
    scope, root = file.scope(step.statement), optimizer(step.statement).partition(".")[0]
    call = stands if isinstance(stands, cst.Call) else None
    if call is None or not root:
        return ""
    own = parameters(scope)
    method = isinstance(call.func, cst.Attribute) and own[:1] == ["self"]
    if root == "self":
        owner = dotted(call.func.value) if isinstance(call.func, cst.Attribute) else ""
        return text.replace("self.", f"{owner}.") if owner else ""
    if root not in own:
        stored = any(
            one.value == root and isinstance(file.parents[one], cst.AssignTarget) for one in walk(scope, cst.Name)
        )
        return "" if stored else text
    named = next((arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == root), None)
    plain = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    at = own.index(root) - method
    given = named if named is not None else plain[at] if at < len(plain) else None
    return f"{dotted(given)}{text.removeprefix(root)}" if dotted(given) and text.startswith(root) else ""
