"""A source file, parsed: the node at a place, what is around a node, and the text of both."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar, cast

from noclobber.model.source import Site, Span, characters, source_text
from noclobber.syntax.compiling import parsed

Placed = ast.stmt | ast.expr | ast.keyword | ast.arg | ast.alias
"""Nodes that know their place in the text."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Lambda | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
Turns = Loop | Function
"""What runs again and again: a loop, or a closure that the step of an optimizer calls."""
With = ast.With | ast.AsyncWith
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
FOR = (ast.For, ast.AsyncFor)
COMPREHENSION = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
LOOP = (*FOR, ast.While)
WITH = (ast.With, ast.AsyncWith)
LONGEST = 200_000
"""Characters of a file that is worked on: at this length it takes about a second."""

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class File:
    """A source file, parsed. Positions go in and out as `Span`: lines and columns 1-based, in characters.

    `above` gives the node around each node, `starts` the offset at which each line starts. `found` is what `at` has
    found so far.
    """

    path: str
    text: str
    tree: ast.Module
    above: Mapping[ast.AST, ast.AST]
    starts: tuple[int, ...]
    found: dict[Span, ast.AST] = field(default_factory=dict)

    def span(self, node: Placed) -> Span:
        """Return the span of a node. Parentheses around it do not belong to it, unless it is a tuple."""
        (first, begin), (last, end) = starts(node), ends(node)
        start, stop = characters(self.line(first), begin) + 1, characters(self.line(last), end) + 1
        return Span(self.path, first, start, last, stop)

    def source(self, node: Placed) -> str:
        """The text of a node as it is written."""
        return self.slice(self.span(node))

    def slice(self, span: Span) -> str:
        """The text at a span."""
        return self.text[self.offset(span.line, span.column) : self.offset(span.end_line, span.end_column)]

    def offset(self, line: int, column: int) -> int:
        """The offset in the text of a line and a column."""
        return self.starts[min(line, len(self.starts)) - 1] + column - 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        return self.text[self.offset(number, 1) : self.offset(*self.end_of_line(number))]

    def end_of_line(self, number: int) -> tuple[int, int]:
        """Line and column after the last character of a line."""
        end = self.starts[number] - 1 if number < len(self.starts) else len(self.text)
        return number, len(self.text[self.starts[number - 1] : end].rstrip("\r")) + 1

    def at(self, span: Span) -> ast.AST:
        """The smallest node that covers a span; the module where none does."""
        if (known := self.found.get(span)) is not None:
            return known
        found: ast.AST = self.tree
        below: ast.AST | None = found
        while below is not None:
            found, below = below, next((one for one in _placed(below) if self._covers(one, span)), None)
        self.found[span] = found
        return found

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while node in self.above:
            node = self.above[node]
            yield node

    def nearest(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        """The node itself, or the innermost one around it, that is of one of the kinds."""
        return next((one for one in (node, *self.around(node)) if isinstance(one, kinds)), None)

    def scope(self, node: ast.AST) -> Scope:
        """The function, or the module, whose names a node uses."""
        return next(one for one in self.around(node) if isinstance(one, Scope))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the simple statement that a node is part of; None for the head of a compound statement."""
        found = self.nearest(node, ast.stmt)
        return None if hasattr(found, "body") else found

    def block(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements that a statement stands among."""
        around = self.above[node]
        blocks = (getattr(around, name, None) for name in ("body", "orelse", "finalbody"))
        return next(rows for rows in blocks if isinstance(rows, list) and node in rows)

    def beside(self, row: ast.stmt, fits: Callable[[ast.stmt], bool], *, above: bool = True) -> list[ast.stmt]:
        """A statement of a block, with those right above and below it that fit."""
        rows = self.block(row)
        first = last = rows.index(row)
        while above and first and fits(rows[first - 1]):
            first -= 1
        while last + 1 < len(rows) and fits(rows[last + 1]):
            last += 1
        return rows[first : last + 1]

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node within its scope, the innermost first."""
        scope = self.scope(node)
        return [one for one in self.around(node) if isinstance(one, LOOP) and self.scope(one) is scope]

    def holds(self, outer: ast.AST, node: ast.AST) -> bool:
        """Whether a node is another one, or stands in it."""
        return node is outer or outer in self.around(node)

    def together(self, one: ast.AST, other: ast.AST) -> tuple[list[ast.stmt], int, int]:
        """The innermost block of a function that holds both nodes, and where in it each is; an empty one where none
        does."""
        for row in (one, *self.around(one)):
            if isinstance(row, FUNCTION) and row is not one:
                break
            rows = self.block(row) if isinstance(row, ast.stmt) else []
            holding = next((number for number, each in enumerate(rows) if self.holds(each, other)), None)
            if isinstance(row, ast.stmt) and holding is not None:
                return rows, rows.index(row), holding
        return [], 0, 0

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node's method belongs to."""
        return next((one for one in self.around(node) if isinstance(one, ast.ClassDef)), None)

    def indent(self, node: ast.stmt) -> str | None:
        """The blanks before a statement; None where something else stands before it on its line."""
        before = self.line(node.lineno)[: self.span(node).column - 1]
        return None if before.strip() else before

    def own_lines(self, node: ast.stmt) -> str | None:
        """Return the blanks before a statement that has its lines for itself, except for comments; else None."""
        span = self.span(node)
        after = self.line(span.end_line)[span.end_column - 1 :].strip()
        return self.indent(node) if not after or after.startswith("#") else None

    def indentation(self) -> str:
        """Return how far the file indents blocks: as far as the first block, else four blanks."""
        for one in walk(self.tree, ast.stmt):
            rows = getattr(one, "body", None)
            inner = self.indent(rows[0]) if rows else None
            if inner is not None and len(inner) > len(self.indent(one) or ""):
                return inner[len(self.indent(one) or "") :]
        return "    "

    def _covers(self, node: Placed, wanted: Span) -> bool:
        if node.lineno > wanted.line or last_line(node) < wanted.end_line:
            return False
        span = self.span(node)
        opens = (span.line, span.column) <= (wanted.line, wanted.column)
        return opens and (wanted.end_line, wanted.end_column) <= (span.end_line, span.end_column)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the source as syntax: the smallest node that covers it."""

    file: File
    node: Placed

    @property
    def row(self) -> ast.stmt:
        """The statement that holds the node, a simple or a compound one; an empty one for a place outside of all."""
        return self.file.nearest(self.node, ast.stmt) or ast.Pass(lineno=1, col_offset=0)

    @property
    def statement(self) -> ast.stmt | None:
        """The simple statement that holds the node; None in the head of a compound one."""
        return self.file.statement(self.node)


@lru_cache(maxsize=64)
def parse(path: str, text: str) -> File | None:
    """A file; None where its text is no Python of the running version."""
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    _call_modules_as_usual(tree)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    starts = accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0)
    return File(path, text, tree, above, tuple(starts))


_USUAL = {"torch": "torch", "torch.nn": "nn", "torch.nn.functional": "F", "torch.nn.init": "init", "numpy": "np"}
"""The names under which most programs know these modules."""


def _call_modules_as_usual(tree: ast.Module) -> None:
    """Let the nodes say `torch` where a file has `import torch as th`; the text stays what it is.

    Where the file has another variable of either name, nothing is done.
    """
    others: dict[str, str] = {}
    for row in tree.body:
        whole = f"{row.module}." if isinstance(row, ast.ImportFrom) else ""
        for alias in row.names if isinstance(row, (ast.Import, ast.ImportFrom)) else ():
            usual = _USUAL.get(whole + alias.name)
            if alias.asname and usual and usual != alias.asname:
                others[alias.asname] = usual
    if not others:
        return
    names = list(walk(tree, ast.Name))
    bound = {one.id for one in names if not isinstance(one.ctx, ast.Load)} | {one.arg for one in walk(tree, ast.arg)}
    for one in names:
        if one.id in others and bound.isdisjoint((one.id, others[one.id])):
            one.id = others[one.id]


def file_at(path: str) -> File | None:
    """A file as it was when the program ran; None where it is missing, too long, or no Python."""
    text = source_text(path)
    return parse(path, text) if text and len(text) <= LONGEST else None


def place_of(site: Site | None) -> Place | None:
    """The syntax at a site; None where its file is not known."""
    file = file_at(site.code.co_filename) if site is not None else None
    node = file.at(site.span()) if file is not None and site is not None else None
    return Place(file, node) if file is not None and isinstance(node, Placed) else None


def statement_of(site: Site | None) -> ast.stmt | None:
    """The simple statement at a site."""
    place = place_of(site)
    return place.statement if place is not None else None


def walk(node: ast.AST, *kinds: type[Node]) -> Iterator[Node]:
    """Yield the nodes of some kinds in and below a node, in the order of the text."""
    rows, first, end = vars(node).get(_PLACE_IN_ROWS) or _in_rows(node)
    numbers, found = rows.of(kinds)
    return iter(found[bisect_left(numbers, first) : bisect_left(numbers, end)])


_PLACE_IN_ROWS = "noclobber_rows"
"""Where a node keeps its place in the order of the text. A report asks hundreds of times, and a file never changes."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The nodes of a tree in the order of the text. `found` are, for the kinds that were asked for so far, their
    numbers and they themselves."""

    nodes: list[ast.AST]
    found: dict[tuple[type, ...], tuple[list[int], list[ast.AST]]]

    def of(self, kinds: tuple[type[Node], ...]) -> tuple[list[int], list[Node]]:
        if kinds not in self.found:
            numbers = [number for number, one in enumerate(self.nodes) if isinstance(one, kinds)]
            self.found[kinds] = numbers, [self.nodes[one] for one in numbers]
        return cast("tuple[list[int], list[Node]]", self.found[kinds])


def _in_rows(node: ast.AST) -> tuple[_Rows, int, int]:
    """Return the nodes in and below a node in the order of the text, with the first index and the last; keep that on
    each node that has others below it."""
    nodes: list[ast.AST] = []
    above: list[int] = []
    waiting = [(node, 0)]
    while waiting:
        one, parent = waiting.pop()
        waiting += [(child, len(nodes)) for child in sorted(ast.iter_child_nodes(one), key=_order)[::-1]]
        nodes.append(one)
        above.append(parent)
    rows, below = _Rows(nodes, {}), [1] * len(nodes)
    for index in range(len(nodes) - 1, 0, -1):
        below[above[index]] += below[index]
        if below[index] > 1:  # Python has one `Load` for all trees
            vars(nodes[index])[_PLACE_IN_ROWS] = rows, index, index + below[index]
    vars(node)[_PLACE_IN_ROWS] = found = rows, 0, len(nodes)
    return found


def simple_statements(node: ast.AST) -> list[ast.stmt]:
    """The simple statements in and below a node, in the order of the text."""
    return [one for one in walk(node, ast.stmt) if not hasattr(one, "body")]


def functions(node: ast.AST) -> Iterator[Function]:
    """The functions in and below a node, in the order of the text."""
    return walk(node, *FUNCTION)


def within(scope: ast.AST, *kinds: type[Node]) -> Iterator[Node]:
    """Yield the nodes of some kinds of a scope, without those of functions and classes in it."""
    return (one for one in _below(scope).of(kinds)[1] if not isinstance(one, _OWN_SCOPE))


def nested(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions and classes that stand in a scope."""
    return iter(_below(scope).of(_OWN_SCOPE)[1])


_OWN_SCOPE = (*FUNCTION, ast.Lambda, ast.ClassDef)


def _below(scope: ast.AST) -> _Rows:
    """Return the nodes of a scope, and the functions and classes in it, but nothing of what is inside those; keep that
    on the scope."""
    kept: _Rows | None = vars(scope).get(_ROWS_OF_SCOPE)
    if kept is not None:
        return kept
    below = []
    waiting = list(ast.iter_child_nodes(scope))[::-1]
    while waiting:
        below.append(node := waiting.pop())
        if not isinstance(node, _OWN_SCOPE):
            waiting += list(ast.iter_child_nodes(node))[::-1]
    rows = _Rows(below, {})
    if below:  # Python has one `Load` for all trees
        vars(scope)[_ROWS_OF_SCOPE] = rows
    return rows


_ROWS_OF_SCOPE = "noclobber_rows_of_scope"


def starts(node: Placed) -> tuple[int, int]:
    """The line and the offset in it at which a node starts."""
    return node.lineno, node.col_offset


def ends(node: Placed) -> tuple[int, int]:
    """The same for its end."""
    return last_line(node), node.end_col_offset or node.col_offset


def first_line(node: ast.stmt) -> int:
    """The line that a statement begins on, with its decorators."""
    return min((one.lineno for one in getattr(node, "decorator_list", ())), default=node.lineno)


def last_line(node: Placed) -> int:
    """The line that a node ends on."""
    return node.end_lineno or node.lineno


def lines_in(node: Placed) -> range:
    """The lines that a node stands on."""
    return range(node.lineno, last_line(node) + 1)


def _order(node: ast.AST) -> tuple[int, int]:
    """Return the order of a node in the text; `ast` gives decorators after the body, and defaults after the names."""
    first = node if isinstance(node, Placed) else next((one for one in ast.walk(node) if isinstance(one, Placed)), None)
    return starts(first) if first is not None else (0, 0)


def _placed(node: ast.AST) -> Iterator[Placed]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Placed):
            yield child
        else:
            yield from _placed(child)


def has_text_of_lines(row: ast.stmt) -> bool:
    """Return True if a text of several lines, or bytes, stands in a statement: to move it would change it."""
    return any(isinstance(one.value, (str, bytes)) and last_line(one) > one.lineno for one in walk(row, ast.Constant))
