"""Edits to a source file: an expression replaced or called on, statements put in, moved and taken out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from noclobber.model.reports.finding import Edit
from noclobber.model.source import Span
from noclobber.syntax.names import arguments, is_given, keyword
from noclobber.syntax.tree import FOR, WITH, File, Placed, first_line, has_text_of_lines, last_line, starts

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)


def replace(file: File, node: Placed, text: str) -> Edit:
    """Put a text in the place of a node; parentheses around the node stay."""
    return Edit(file.span(node), text)


def insert(file: File, line: int, column: int, text: str) -> Edit:
    """Put a text in before a place."""
    return Edit(Span(file.path, line, column, line, column), text)


def append(file: File, node: ast.expr, text: str) -> Edit:
    """Put a text such as `.clone()` after an expression, with parentheses if the expression needs them."""
    span = file.span(node)
    if isinstance(node, (*_ATOMS, ast.Tuple)):
        return insert(file, span.end_line, span.end_column, text)
    rest = file.text[file.offset(span.end_line, span.end_column) :]
    before = file.text[: file.offset(span.line, span.column)]
    above = file.above[node]
    only = isinstance(above, ast.Call) and arguments(above) == [node]
    if before.endswith("(") and rest.startswith(")") and not only:
        return insert(file, span.end_line, span.end_column + 1, text)
    return Edit(span, f"({file.source(node)}){text}")


def rewritten(file: File, span: Span, edits: Iterable[Edit]) -> str:
    """The text at a span as it is after edits inside it, which do not overlap."""
    text, begin = file.slice(span), file.offset(span.line, span.column)
    at = [(file.offset(one.span.line, one.span.column), one) for one in edits]
    for start, one in sorted(at, key=lambda each: each[0], reverse=True):
        end = file.offset(one.span.end_line, one.span.end_column)
        text = text[: start - begin] + one.replacement + text[end - begin :]
    return text


def before(file: File, node: ast.AST, *lines: str) -> Edit | None:
    """Put statements before the one that holds a node; on the same line where that one shares its line. None before an
    `elif`, where none can stand."""
    row = file.nearest(node, ast.stmt)
    if row is None or (isinstance(row, ast.If) and file.source(row).startswith("elif")):
        return None
    blanks = file.indent(row)
    joint = "; " if blanks is None else f"\n{blanks}"
    span = file.span(row)
    return insert(file, span.line, span.column, "".join(one + joint for one in lines))


def cloned_before(file: File, node: ast.AST, name: str) -> Edit | None:
    """Return the edit that puts `h = h.clone()` on a line before the statement of a node."""
    return before(file, node, f"{name} = {name}.clone()")


def after(file: File, node: ast.AST, *lines: str) -> Edit | None:
    """Put statements after the one that holds a node, and after its comment."""
    row = file.nearest(node, ast.stmt)
    if row is None:
        return None
    blanks, span = file.indent(row), file.span(row)
    if blanks is None:
        return insert(file, span.end_line, span.end_column, "".join(f"; {one}" for one in lines))
    return insert(file, *file.end_of_line(span.end_line), "".join(f"\n{blanks}{one}" for one in lines))


def remove(file: File, node: ast.AST) -> Edit | None:
    """Take out the statement that holds a node, with its lines; `pass` where its block would be left empty.

    None for a compound one other than a loop or a `with`, and for one that shares its lines.
    """
    row = file.nearest(node, ast.stmt)
    if row is None or file.own_lines(row) is None or (hasattr(row, "body") and not isinstance(row, (*FOR, *WITH))):
        return None
    if len(file.block(row)) < 2:
        return Edit(file.span(row), "pass")
    return whole_lines(file, row.lineno, last_line(row))


def whole_lines(file: File, first: int, last: int) -> Edit:
    """Take lines out, with the end of the last one; for the last lines of the file, with the end of the one before."""
    if last < len(file.starts):
        return Edit(Span(file.path, first, 1, last + 1, 1), "")
    line, column = file.end_of_line(first - 1) if first > 1 else (1, 1)
    return Edit(Span(file.path, line, column, *file.end_of_line(last)), "")


def lines_of(file: File, row: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement, with its decorators and the comments that stand right above it."""
    first, blanks = first_line(row), file.indent(row)
    while first > 1 and file.line(first - 1).startswith(f"{blanks}#"):
        first -= 1
    return first, last_line(row)


def text_of_lines(file: File, first: int, last: int) -> str:
    """The text from the start of a line to the end of another one."""
    return file.text[file.offset(first, 1) : file.offset(*file.end_of_line(last))]


def with_comment(file: File, row: ast.stmt) -> str:
    """Return the text of a statement and of the comment after it."""
    span = file.span(row)
    rest = file.line(span.end_line)[span.end_column - 1 :]
    return file.source(row) + (rest if rest.strip().startswith("#") else "")


def unwrapped(file: File, block: ast.With | ast.AsyncWith | ast.If) -> tuple[Edit, ...]:
    """Edits that take a `with` or an `if` off its statements; empty where that cannot be done."""
    outer, inner, first = file.indent(block), file.indent(block.body[0]), lines_of(file, block.body[0])[0]
    if outer is None or inner is None or first <= block.lineno or any(map(has_text_of_lines, block.body)):
        return ()
    numbers = [number for number in range(first, last_line(block) + 1) if file.line(number).strip()]
    deeper = len(inner) - len(outer)
    return (
        whole_lines(file, block.lineno, first - 1),
        *(Edit(Span(file.path, number, 1, number, deeper + 1), "") for number in numbers),
    )


def undecorated(file: File, decorator: ast.expr) -> Edit:
    """Take a decorator out, with its lines."""
    return whole_lines(file, decorator.lineno, last_line(decorator))


def with_argument(file: File, call: ast.Call, text: str) -> Edit:
    """Give a call one more argument, at its end."""
    span, given = file.span(call), arguments(call)
    if not given:
        return insert(file, span.end_line, span.end_column - 1, text)
    last = file.span(max(given, key=starts))
    if (last.end_line, last.end_column) == (span.end_line, span.end_column):
        return Edit(last, f"({file.slice(last)}, {text})")  # a generator alone: its parentheses are those of the call
    rest = file.slice(Span(file.path, last.end_line, last.end_column, span.end_line, span.end_column))
    rest = re.sub(r"#.*", "", rest)
    if "," in rest or ")" in rest[:-1]:
        joint = " " if rest.rstrip(")").rstrip().endswith(",") else ", "
        return insert(file, span.end_line, span.end_column - 1, joint + text)
    return insert(file, last.end_line, last.end_column, f", {text}")


def without_argument(file: File, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit | None:
    """Take an argument out of a call, with the comma before it; for the first argument, with the comma after it.

    None where a line ends between a parenthesis and the argument: what is to stay there is not plain.
    """
    given = sorted(arguments(call), key=starts)
    index, span = given.index(argument), file.span(argument)
    if index == 0:
        following = file.span(given[1]) if len(given) > 1 else None
        end = (span.end_line, span.end_column) if following is None else (following.line, following.column)
        return Edit(Span(file.path, span.line, span.column, *end), "")
    last = file.span(given[index - 1])
    line, column = last.end_line, last.end_column
    between = file.slice(Span(file.path, line, column, span.line, span.column))
    if ")" in between:
        if "\n" in between:
            return None
        column += between.rindex(")") + 1
    return Edit(Span(file.path, line, column, span.end_line, span.end_column), "")


def without_retaining(file: File, call: ast.Call) -> Edit | None:
    """Take `retain_graph=True` out of a call; None where it is not there."""
    flag = keyword(call, "retain_graph")
    return without_argument(file, call, flag) if flag is not None and is_given(call, "retain_graph", True) else None


def under_no_grad(file: File, rows: Sequence[ast.stmt]) -> tuple[Edit, ...]:
    """Put statements that follow each other under one `with torch.no_grad():`; empty where that cannot be done: one
    shares its lines, or holds a text of several."""
    blanks, deeper, edits = file.indent(rows[0]), file.indentation(), []
    if any(file.own_lines(one) is None or has_text_of_lines(one) for one in rows):
        return ()
    for one in rows:
        start = file.span(one)
        head = f"with torch.no_grad():\n{blanks}" if one is rows[0] else ""
        edits.append(insert(file, start.line, start.column, head + deeper))
        edits += [insert(file, number, 1, deeper) for number in range(start.line + 1, start.end_line + 1)]
    return tuple(edits)
