"""Optimizer steps that come before a backward which needs the old weights: the order of backwards and steps changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene
from noclobber.model.finding import Edit
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
from noclobber.syntax.names import called, dotted, keyword, names_bound
from noclobber.syntax.tree import FOR, FUNCTION, File, Place, last_line, walk

_HARMLESS = frozenset(
    """
    add_scalar append debug eval info log print requires_grad_ set_description set_postfix set_requires_grad train write
    """.split()  # noqa: SIM905
)
"""Calls, made for what they do, that neither read nor change weights."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "unscale_")
_UPDATES = ("zero_grad", "backward", "step", *_CLIPS, "update")


def reordered(scene: Scene) -> Iterator[Candidate]:
    """Candidates where the step and the backward after it stand in one block of one function."""
    step, read = scene.place("write"), scene.place("read")
    if step is None or read is None or step.file is not read.file:
        return
    file = step.file
    rows, first, second = together(file, step.row, read.row)
    if not rows or first == second:
        return
    if first > second:
        yield from _loop_split(file, step, read)
        return
    if any(map(does_more, rows[first + 1 : second])):
        return
    end = end_of_update(rows, second)
    yield from _swapped(file, rows, first, second, end)
    yield from _moved(file, step, read, rows, first, second, end)
    yield from _merged(file, step, rows, first, second)


def does_more(row: ast.stmt) -> bool:
    """Return True if a statement may change weights, or what belongs to them, or read them for other than a loss: it is
    a loop or block that does so, or a call whose result nobody takes, as of a scheduler.

    A step that moved past it would come too late. No proof shows that where the difference is in later steps.
    """
    return any(map(_is_more, statements_in(row))) or (
        hasattr(row, "body") and any(isinstance(one, ast.AugAssign) for one in statements_in(row))
    )


def _is_more(row: ast.stmt) -> bool:
    if isinstance(row, ast.Expr) and isinstance(row.value, ast.Call):
        return called(row.value) not in (*_HARMLESS, *_CLIPS, "zero_grad", "backward")
    return isinstance(row, ast.Assign) and any(one.attr == "data" for one in walk(row, ast.Attribute))


def optimizer(statement: ast.stmt) -> str:
    """ "self.opt" for the statement `self.opt.step()`, "opts[i]" for `opts[i].step()`; empty for anything else."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "step" or not isinstance(call.func, ast.Attribute):
        return ""
    owner = call.func.value
    return _plain(call.args[0] if call.args and "scaler" in dotted(owner) else owner)


def _plain(node: ast.expr) -> str:
    """The text of a name, a chain of attributes, or a part of one; empty for what does more."""
    base = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(node) if dotted(base) and next(walk(node, ast.Call), None) is None else ""


def together(file: File, one: ast.AST, other: ast.AST) -> tuple[list[ast.stmt], int, int]:
    """The innermost block that holds both nodes, and where in it each is; an empty one where none does."""
    for row in (one, *file.around(one)):
        if isinstance(row, FUNCTION) and row is not one:
            break
        rows = file.block(row) if isinstance(row, ast.stmt) else []
        holding = next((number for number, each in enumerate(rows) if _holds(file, each, other)), None)
        if isinstance(row, ast.stmt) and holding is not None:
            return rows, rows.index(row), holding
    return [], 0, 0


def _swapped(file: File, rows: list[ast.stmt], first: int, second: int, end: int) -> Iterator[Candidate]:
    """The later update, whole, before the earlier one: its gradients are then zeroed before they could do harm."""
    start = first
    while start > 0 and isinstance(rows[start - 1], ast.Expr) and _calls(rows[start - 1], *_UPDATES):
        start -= 1
    zeroes = any(_calls(row, "zero_grad") for row in rows[start:first])
    if not zeroes or not any(optimizer(one) for row in rows[first + 1 : end + 1] for one in statements_in(row)):
        return
    begin, stop, target = lines_of(file, rows[first + 1])[0], last_line(rows[end]), lines_of(file, rows[start])[0]
    text = text_of_lines(file, begin, stop)
    is_apart = not file.line(begin - 1).strip()
    gone, below = whole_lines(file, begin - is_apart, stop), "\n" * (1 + is_apart)
    title = "make the later update first"
    retained = [
        edit for row in rows[start:first] for one in walk(row, ast.Call) if (edit := without_retaining(file, one))
    ]
    kept = [one for one in _calls(rows[second], "backward") if keyword(one, "retain_graph") is None]
    if retained and len(kept) == 1:
        given = with_argument(file, kept[0], "retain_graph=True")
        at = file.offset(given.span.line, given.span.column) - file.offset(begin, 1)
        swapped = insert(file, target, 1, f"{text[:at]}{given.replacement}{text[at:]}{below}")
        yield Candidate(title, (swapped, *retained, gone), 4)
    yield Candidate(title, (insert(file, target, 1, text + below), gone), 4)


def _moved(
    file: File, step: Place, read: Place, rows: list[ast.stmt], first: int, second: int, end: int
) -> Iterator[Candidate]:
    """The step below the backward, which gets only the parameters that its own optimizer steps."""
    gone, text = remove(file, step.row), with_comment(file, step.row)
    begin, stop = lines_of(file, rows[first])
    heading = [file.line(number).strip() for number in range(begin, rows[first].lineno)]
    put = after(file, rows[second], *heading, text)
    if gone is None or put is None or "\n" in text:
        return
    gone = whole_lines(file, begin, stop) if rows[first] is step.row else gone
    later = [one for row in rows[second + 1 : end + 1] for one in statements_in(row)]
    own = next((name for one in later if (name := optimizer(one))), "")
    yield from later_step(read, own, gone, put)


def later_step(read: Place, own: str, gone: Edit, put: Edit) -> Iterator[Candidate]:
    """A step taken out and put in after a backward: that reaches only what its `own` optimizer steps, or all."""
    file = read.file
    call = file.nearest(read.node, ast.Call)
    if own and call is not None and called(call) == "backward" and keyword(call, "inputs") is None:
        inputs = with_argument(file, call, f"inputs={parameters_of(file, own, call)}")
        only = f"compute gradients there only for the parameters of `{own}`"
        title = f"move the step below the last backward, and {only}"
        yield Candidate(title, (gone, inputs, put), 2)
    yield Candidate("step after the last backward", (gone, put), 3)


def _merged(file: File, step: Place, rows: list[ast.stmt], first: int, second: int) -> Iterator[Candidate]:
    """One optimizer, stepped once after both backwards: the first step and the `zero_grad` between them go."""
    name = optimizer(step.row)
    gone = remove(file, step.row)
    between = [one for row in rows[first + 1 : second] for one in _calls(row, "zero_grad")]
    later = [one for row in rows[second + 1 :] for one in statements_in(row)]
    if name and gone is not None and between and any(optimizer(one) == name for one in later):
        zeros = [edit for one in between if (edit := remove(file, one)) is not None]
        yield Candidate("step once, after both backwards", (gone, *zeros), 2)


def _loop_split(file: File, step: Place, read: Place) -> Iterator[Candidate]:
    """`for a in agents: zero, backward, step` as separate loops, where each turn has its own optimizer."""
    loop = file.nearest(step.row, *FOR)
    name = optimizer(step.row)
    if not isinstance(loop, FOR) or file.indent(loop) is None:
        return
    rows, inner = loop.body, file.indent(loop.body[0])
    if inner is None or not names_bound(loop.target) & set(re.split(r"\W+", name)):
        return
    at = next((n for n, row in enumerate(rows) if _holds(file, row, step.row)), -1)
    if at < 1 or not _holds(file, loop, read.row):
        return
    indent = file.indent(loop) or ""
    header = f"for {file.source(loop.target)} in {file.source(loop.iter)}:"
    later = insert(file, rows[at].lineno, 1, f"{indent}{header}\n")
    zeros = [row for row in rows[:at] if isinstance(row, ast.Expr) and _calls(row, "zero_grad")]
    if zeros and len(zeros) < at:
        opens = file.span(loop)
        lines = "".join(f"{inner}{file.source(row)}\n" for row in zeros)
        first = insert(file, opens.line, opens.column, f"{header}\n{lines}{indent}")
        gone = [edit for row in zeros if (edit := remove(file, row)) is not None]
        yield Candidate("run every backward before the first step", (first, *gone, later), 2)
    yield Candidate("step in a second loop, after every backward", (later,), 3)


def end_of_update(rows: list[ast.stmt], second: int) -> int:
    """The last statement of the update that a backward belongs to: the next step, if only such calls lie between."""
    for number in range(second + 1, min(len(rows), second + 5)):
        if any(optimizer(one) for one in statements_in(rows[number])):
            return number
        if not _calls(rows[number], *_UPDATES):
            break
    return second


def parameters_of(file: File, name: str, at: ast.AST) -> str:
    """The parameters of an optimizer, as an expression: from where it is made, else from its groups."""
    for one in walk(file.tree, ast.Assign):
        if dotted(one.targets[0]) != name or not isinstance(one.value, ast.Call) or not one.value.args:
            continue
        given = one.value.args[0]
        known = name.startswith("self.") and file.source(given).startswith("self.")
        if (known or file.scope(one) is file.scope(at)) and called(given) == "parameters":
            return f"list({file.source(given)})"
    return f'[p for group in {name}.param_groups for p in group["params"]]'


def _holds(file: File, row: ast.stmt, node: ast.AST) -> bool:
    return row is node or row in file.around(node)


def _calls(row: ast.stmt, *names: str) -> list[ast.Call]:
    """The calls of some names in a statement."""
    return [one for one in walk(row, ast.Call) if called(one) in names]


def statements_in(row: ast.AST) -> list[ast.stmt]:
    """The simple statements in and below a statement."""
    return [one for one in walk(row, ast.stmt) if not hasattr(one, "body")]
