"""A parsed source file: nodes at spans, text of nodes, and the edits that replace, insert and remove whole nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from noclobber.model.finding import Edit
from noclobber.model.source import Span

Node = TypeVar("Node", bound=cst.CSTNode)
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


@dataclass(frozen=True, eq=False)
class ParsedFile:
    """A source file, parsed. Positions go in and out as `Span`: lines and columns 1-based, in characters."""

    path: str
    text: str
    module: cst.Module
    ranges: Mapping[cst.CSTNode, CodeRange]
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    starts: tuple[int, ...]

    def span(self, node: cst.CSTNode) -> Span:
        """Where a node stands, without the parentheses around it."""
        place = self.ranges[node]
        return Span(self.path, place.start.line, place.start.column + 1, place.end.line, place.end.column + 1)

    def source(self, node: cst.CSTNode) -> str:
        """The text of a node as it is written, without the parentheses around it."""
        span = self.span(node)
        return self.text[self.offset(span.line, span.column) : self.offset(span.end_line, span.end_column)]

    def offset(self, line: int, column: int) -> int:
        """The offset in the text of a line and a column."""
        return self.starts[min(line, len(self.starts)) - 1] + column - 1

    def at(self, span: Span) -> cst.CSTNode:
        """The innermost smallest node that covers a span; the module where nothing does."""
        want = ((span.line, span.column), (span.end_line, span.end_column))
        best: cst.CSTNode = self.module
        for node, place in self.ranges.items():
            if place.start.line > span.line or place.end.line < span.end_line:
                continue
            opens, closes = _ends(place)
            if opens <= want[0] and want[1] <= closes and _within(place, self.ranges[best]):
                best = node if best in self.ancestors(node) or place != self.ranges[best] else best
        return best

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def around(self, node: cst.CSTNode, *kinds: type[Node]) -> Node | None:
        """The node itself or the nearest one around it that is of one of the kinds."""
        for one in (node, *self.ancestors(node)):
            if isinstance(one, kinds):
                return one
        return None

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """The function around a node; the module where there is none."""
        inner = (one for one in self.ancestors(node) if isinstance(one, cst.FunctionDef))
        return next(inner, self.module)

    def line(self, node: cst.CSTNode) -> int:
        """The 1-based line that a node starts on."""
        return self.ranges[node].start.line

    def indent(self, statement: cst.CSTNode) -> str | None:
        """The blanks before a statement; None where something else stands before it on its line."""
        span = self.span(statement)
        before = self.text[self.offset(span.line, 1) : self.offset(span.line, span.column)]
        return None if before.strip() else before

    def end_of_line(self, line: int) -> tuple[int, int]:
        """Line and column after the last character of a line."""
        end = self.starts[line] - 1 if line < len(self.starts) else len(self.text)
        return line, len(self.text[self.starts[line - 1] : end].rstrip("\r")) + 1


def parse(path: str, text: str) -> ParsedFile | None:
    """A file, or None where its text is not Python that the installed libcst knows."""
    try:
        return _parse(path, text)
    except (cst.ParserSyntaxError, RecursionError):
        return None


@lru_cache(maxsize=32)
def _parse(path: str, text: str) -> ParsedFile:
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    ranges = cast(Mapping[cst.CSTNode, CodeRange], wrapper.resolve(PositionProvider))
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    waiting: list[cst.CSTNode] = [wrapper.module]
    while waiting:
        node = waiting.pop()
        parents.update(dict.fromkeys(_children(node), node))
        waiting += _children(node)
    starts = [0]
    for line in text.split("\n")[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return ParsedFile(path, text, wrapper.module, ranges, parents, tuple(starts))


def walk(node: cst.CSTNode, *kinds: type[Node]) -> Iterator[Node]:
    """The nodes of some kinds in and below a node, in the order of the text."""
    if isinstance(node, kinds):
        yield node
    for child in _children(node):
        yield from walk(child, *kinds)


@lru_cache(maxsize=200_000)
def _children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The nodes right below one. Finding them takes libcst long, and the same nodes are walked again and again."""
    return tuple(node.children)


def replace(file: ParsedFile, node: cst.CSTNode, text: str) -> Edit:
    """Put a text in the place of a node; parentheses around the node stay."""
    return Edit(file.span(node), text)


def append(file: ParsedFile, node: cst.BaseExpression, text: str) -> Edit:
    """Put a text such as `.clone()` behind an expression, in parentheses where the expression needs them."""
    atom = isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.List, cst.Dict))
    span = file.span(node)
    if atom or node.lpar:
        line, column = span.end_line, span.end_column
        if not atom:
            rest = file.text[file.offset(line, column) :]
            column += rest.index(")") + 1
        return Edit(Span(file.path, line, column, line, column), text)
    return Edit(span, f"({file.source(node)}){text}")


def before(file: ParsedFile, node: cst.CSTNode, *lines: str) -> Edit | None:
    """Insert statements before the one that holds `node`; on the same line where that one shares its line."""
    statement = small(file, node)
    if statement is None:
        return None
    indent, span = file.indent(statement), file.span(statement)
    joint = "; " if indent is None else f"\n{indent}"
    return Edit(Span(file.path, span.line, span.column, span.line, span.column), "".join(one + joint for one in lines))


def after(file: ParsedFile, node: cst.CSTNode, *lines: str) -> Edit | None:
    """Insert statements after the one that holds `node`, behind its comment."""
    statement = small(file, node)
    if statement is None:
        return None
    indent, span = file.indent(statement), file.span(statement)
    if indent is None:
        here = Span(file.path, span.end_line, span.end_column, span.end_line, span.end_column)
        return Edit(here, "".join(f"; {one}" for one in lines))
    line, column = file.end_of_line(span.end_line)
    return Edit(Span(file.path, line, column, line, column), "".join(f"\n{indent}{one}" for one in lines))


def small(file: ParsedFile, node: cst.CSTNode) -> cst.CSTNode | None:
    """The statement around a node: a simple one without its line, or a compound one; the first one of a whole line."""
    if isinstance(node, cst.SimpleStatementLine):
        return node.body[0]
    kinds: tuple[type[cst.CSTNode], ...] = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
    return file.around(node, *kinds)


def remove(file: ParsedFile, node: cst.CSTNode) -> Edit | None:
    """Take out the statement that holds `node` with its lines; `pass` where its block would be left empty."""
    statement = file.around(node, cst.SimpleStatementLine, cst.For, cst.With)
    if statement is None or file.indent(statement) is None:
        return None
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1:
        return None
    parent, span = file.parents[statement], file.span(statement)
    if len(block(parent)) < 2:
        return Edit(span, "pass")
    if span.end_line >= len(file.starts):
        return Edit(Span(file.path, span.line, 1, *file.end_of_line(span.end_line)), "")
    return Edit(Span(file.path, span.line, 1, span.end_line + 1, 1), "")


def top(file: ParsedFile, row: cst.CSTNode) -> int:
    """The first line of a statement of a block, with the comments that stand right above it."""
    lines = file.text.split("\n")
    first = file.line(row.decorators[0] if isinstance(row, cst.FunctionDef) and row.decorators else row)
    blanks = file.indent(row)
    while first > 1 and lines[first - 2].startswith(f"{blanks}#"):
        first -= 1
    return first


def with_comment(file: ParsedFile, node: cst.CSTNode) -> str:
    """The text of a statement, and of the comment behind it."""
    span = file.span(node)
    rest = file.text[file.offset(span.end_line, span.end_column) : file.offset(*file.end_of_line(span.end_line))]
    return file.source(node) + (rest if rest.strip().startswith("#") else "")


def block(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a module or of an indented block; empty for anything else."""
    return node.body if isinstance(node, (cst.Module, cst.IndentedBlock)) else ()


def dotted(node: cst.CSTNode | None) -> str:
    """ "self.conv.weight" for a name or a chain of attributes; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr.value}" if owner else ""
    return ""


def in_tuple(texts: Sequence[str]) -> str:
    """ "(x, y)", and "(x,)" for one."""
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def called(call: cst.CSTNode | None) -> str:
    """The last name of what is called: "add_" for `h[0].add_(x)`; empty for what is no call."""
    func = call.func if isinstance(call, cst.Call) else None
    return func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""


def _ends(place: CodeRange) -> tuple[tuple[int, int], tuple[int, int]]:
    return (place.start.line, place.start.column + 1), (place.end.line, place.end.column + 1)


def _within(inner: CodeRange, outer: CodeRange) -> bool:
    (opens, closes), (around, end) = _ends(inner), _ends(outer)
    return (around <= opens and closes <= end) or outer == inner
