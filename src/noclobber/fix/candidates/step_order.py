"""Optimizer steps that come before a backward which needs the old weights: the order of backwards and steps changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.syntax import ParsedFile, after, block, called, dotted, remove, top, walk, with_comment
from noclobber.fix.candidates.write_syntax import WriteSyntax, keyword, unretained, with_argument
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.source import Span

_UPDATES = ("zero_grad", "backward", "step", "clip_grad_norm_", "clip_grad_value_", "unscale_", "update")


def reordered(scene: Scene) -> Iterator[Candidate]:
    """Candidates where the step and the backward after it stand in one block of one function."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None or step.file is not read.file:
        return
    file = step.file
    rows, first, second = together(file, step.statement, read.statement)
    if not rows or first == second:
        return
    if first > second:
        yield from _loop_split(file, step, read)
        return
    end = end_of_update(file, rows, second)
    yield from _swapped(file, rows, first, second, end)
    yield from _moved(file, step, read, rows, first, second, end)
    yield from _merged(file, step, rows, first, second)


def put_off(scene: Scene, write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """The statement that writes, or that calls the function which does, moved below the backward."""
    read = scene.place("read")
    if read is None:
        return
    file, scope, target = read.file, read.file.scope(read.statement), [write.statement]
    writer = write.file.scope(write.statement)
    if writer is not scope and isinstance(writer, cst.FunctionDef):
        target = [one for one in walk(scope, cst.Call) if called(one) == writer.name.value]
    for one in target:
        rows, first, second = together(file, one, read.statement)
        if not rows or first >= second:
            continue
        begin, stop = top(file, rows[first]), file.span(rows[first]).end_line
        line, column = file.end_of_line(file.span(rows[second]).end_line)
        text = file.text[file.offset(begin, 1) : file.offset(*file.end_of_line(stop))]
        put = Edit(Span(file.path, line, column, line, column), "\n" + text)
        yield Candidate("make this change after the backward", (whole_lines(file, begin, stop), put), cost)


def optimizer(statement: cst.CSTNode) -> str:
    """ "self.opt" for the statement `self.opt.step()`, "opts[i]" for `opts[i].step()`; empty for anything else."""
    call = statement.value if isinstance(statement, cst.Expr) else None
    if not isinstance(call, cst.Call) or called(call) != "step" or not isinstance(call.func, cst.Attribute):
        return ""
    owner = call.func.value
    scaled = bool(call.args) and call.args[0].keyword is None and "scaler" in dotted(owner)
    return _plain(call.args[0].value if scaled else owner)


def _plain(node: cst.BaseExpression) -> str:
    """The text of a name, a chain of attributes, or a part of one; empty for what does more."""
    base = node.value if isinstance(node, cst.Subscript) else node
    calls = next(walk(node, cst.Call), None)
    return cst.Module([]).code_for_node(node) if dotted(base) and calls is None else ""


def together(file: ParsedFile, one: cst.CSTNode, other: cst.CSTNode) -> tuple[list[cst.CSTNode], int, int]:
    """The innermost block that holds both statements, and where in it each is."""
    for body in [one, *file.ancestors(one)]:
        rows = list(block(body))
        places = [next((n for n, row in enumerate(rows) if _holds(file, row, each)), -1) for each in (one, other)]
        if rows and min(places) >= 0:
            return rows, places[0], places[1]
        if isinstance(body, cst.FunctionDef):
            break
    return [], 0, 0


def _swapped(file: ParsedFile, rows: list[cst.CSTNode], first: int, second: int, end: int) -> Iterator[Candidate]:
    """The later update, whole, before the earlier one: its gradients are then zeroed before they could do harm."""
    start = first
    while (
        start > 0 and any(called(one) in _UPDATES for one in calls_in(rows[start - 1])) and _is_plain(rows[start - 1])
    ):
        start -= 1
    zeroes = any(called(one) == "zero_grad" for row in rows[start:first] for one in calls_in(row))
    if not zeroes or not any(optimizer(one) for row in rows[first + 1 : end + 1] for one in statements_in(row)):
        return
    begin, stop, target = top(file, rows[first + 1]), file.span(rows[end]).end_line, top(file, rows[start])
    text = file.text[file.offset(begin, 1) : file.offset(*file.end_of_line(stop))]
    is_apart = not file.text.split("\n")[begin - 2].strip()
    gone, below = whole_lines(file, begin - is_apart, stop), "\n" * (1 + is_apart)
    put = Edit(Span(file.path, target, 1, target, 1), text + below)
    title = "make the later update first"
    retained = [edit for row in rows[start:first] for one in calls_in(row) if (edit := unretained(file, one))]
    kept = [one for one in calls_in(rows[second]) if called(one) == "backward" and keyword(one, "retain_graph") is None]
    if retained and len(kept) == 1:
        close = file.span(kept[0])
        at = file.offset(close.end_line, close.end_column - 1) - file.offset(begin, 1)
        given = ", retain_graph=True" if kept[0].args else "retain_graph=True"
        swapped = Edit(put.span, f"{text[:at]}{given}{text[at:]}{below}")
        yield Candidate(title, (swapped, *retained, gone), 4)
    yield Candidate(title, (put, gone), 4)


def _moved(
    file: ParsedFile, step: Place, read: Place, rows: list[cst.CSTNode], first: int, second: int, end: int
) -> Iterator[Candidate]:
    """The step below the backward, which gets only the parameters that its own optimizer steps."""
    gone = remove(file, step.statement)
    text = with_comment(file, step.statement)
    begin = top(file, rows[first])
    heading = [one.strip() for one in file.text.split("\n")[begin - 1 : file.line(rows[first]) - 1]]
    put = after(file, _inner(rows[second]), *heading, text)
    if gone is None or put is None or "\n" in text:
        return
    gone = whole_lines(file, begin, file.span(rows[first]).end_line) if _inner(rows[first]) is step.statement else gone
    later = [one for row in rows[second + 1 : end + 1] for one in statements_in(row)]
    own = next((name for one in later if (name := optimizer(one))), "")
    yield from later_step(read, own, gone, put)


def later_step(read: Place, own: str, gone: Edit, put: Edit) -> Iterator[Candidate]:
    """A step taken out and put in after a backward: that reaches only what its `own` optimizer steps, or all."""
    file = read.file
    call = read.node if isinstance(read.node, cst.Call) else file.around(read.node, cst.Call)
    if own and call is not None and called(call) == "backward" and keyword(call, "inputs") is None:
        inputs = with_argument(file, call, f"inputs={parameters_of(file, own, call)}")
        title = f"step after the last backward, and let that reach only what `{own}` steps"
        yield Candidate(title, (gone, inputs, put), 2)
    yield Candidate("step after the last backward", (gone, put), 3)


def _merged(file: ParsedFile, step: Place, rows: list[cst.CSTNode], first: int, second: int) -> Iterator[Candidate]:
    """One optimizer, stepped once after both backwards: the first step and the `zero_grad` between them go."""
    name = optimizer(step.statement)
    gone = remove(file, step.statement)
    between = [one for row in rows[first + 1 : second] for one in calls_in(row) if called(one) == "zero_grad"]
    later = [one for row in rows[second + 1 :] for one in statements_in(row)]
    if name and gone is not None and between and any(optimizer(one) == name for one in later):
        zeros = [edit for one in between if (edit := remove(file, one)) is not None]
        yield Candidate("step once, after both backwards", (gone, *zeros), 2)


def _loop_split(file: ParsedFile, step: Place, read: Place) -> Iterator[Candidate]:
    """`for a in agents: zero, backward, step` as loops of their own, where each turn has its own optimizer."""
    loop = file.around(step.statement, cst.For)
    name = optimizer(step.statement)
    if loop is None or file.indent(loop) is None or not isinstance(loop.body, cst.IndentedBlock):
        return
    if not {one.value for one in walk(loop.target, cst.Name)} & set(re.split(r"\W+", name)):
        return
    rows = list(loop.body.body)
    at = next((n for n, row in enumerate(rows) if _holds(file, row, step.statement)), -1)
    if at < 1 or not _holds(file, loop, read.statement):
        return
    indent, inner = file.indent(loop) or "", file.indent(rows[0]) or ""
    header = f"for {file.source(loop.target)} in {file.source(loop.iter)}:"
    begin = file.line(rows[at])
    here = Span(file.path, begin, 1, begin, 1)
    later = Edit(here, f"{indent}{header}\n")
    zeros = [row for row in rows[:at] if any(called(one) == "zero_grad" for one in calls_in(row)) and _is_plain(row)]
    lines = [file.source(one) for row in zeros for one in statements_in(row)]
    if zeros and len(zeros) < at:
        opens = file.span(loop)
        head = Span(file.path, opens.line, opens.column, opens.line, opens.column)
        first = Edit(head, f"{header}\n" + "".join(f"{inner}{one}\n" for one in lines) + indent)
        gone = [edit for row in zeros if (edit := remove(file, row)) is not None]
        yield Candidate("run every backward before the first step", (first, *gone, later), 2)
    yield Candidate("step in a loop of its own, after every backward", (later,), 3)


def end_of_update(file: ParsedFile, rows: list[cst.CSTNode], second: int) -> int:
    """The last statement of the update that a backward belongs to: the next step, if only such calls lie between."""
    for number in range(second + 1, min(len(rows), second + 5)):
        calls = calls_in(rows[number])
        if any(optimizer(one) for one in statements_in(rows[number])):
            return number
        if not any(called(one) in _UPDATES for one in calls):
            break
    return second


def parameters_of(file: ParsedFile, name: str, at: cst.CSTNode) -> str:
    """The parameters of an optimizer, as an expression: from where it is made, else from its groups."""
    for one in walk(file.module, cst.Assign):
        if dotted(one.targets[0].target) != name or not isinstance(one.value, cst.Call) or not one.value.args:
            continue
        given = one.value.args[0].value
        known = name.startswith("self.") and file.source(given).startswith("self.")
        if (known or file.scope(one) is file.scope(at)) and called(given) == "parameters":
            return f"list({file.source(given)})"
    return f'[p for group in {name}.param_groups for p in group["params"]]'


def _holds(file: ParsedFile, row: cst.CSTNode, node: cst.CSTNode) -> bool:
    return row is node or row in file.ancestors(node)


def calls_in(row: cst.CSTNode) -> list[cst.Call]:
    """The calls in a statement."""
    return list(walk(row, cst.Call))


def statements_in(row: cst.CSTNode) -> list[cst.CSTNode]:
    """The simple statements in a statement."""
    return list(walk(row, cst.BaseSmallStatement))  # type: ignore[type-abstract]


def _is_of_update(row: cst.CSTNode) -> bool:
    return any(called(one) in _UPDATES for one in calls_in(row))


def _is_plain(row: cst.CSTNode) -> bool:
    return isinstance(row, cst.SimpleStatementLine) and isinstance(row.body[0], cst.Expr)


def _inner(row: cst.CSTNode) -> cst.CSTNode:
    return row.body[0] if isinstance(row, cst.SimpleStatementLine) else row


def whole_lines(file: ParsedFile, begin: int, stop: int) -> Edit:
    """Take lines out."""
    if stop >= len(file.starts):
        line, column = file.end_of_line(begin - 1)
        return Edit(Span(file.path, line, column, *file.end_of_line(stop)), "")
    return Edit(Span(file.path, begin, 1, stop + 1, 1), "")
