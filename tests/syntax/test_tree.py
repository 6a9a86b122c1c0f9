"""What stands where in a source: nodes at spans, text of nodes, scopes, blocks, loops, blanks."""

from __future__ import annotations

import ast
import linecache

import pytest

from noclobber.model.source import Site
from noclobber.syntax.tree import LONGEST, file_at, functions, parse, place_of, statement_of, walk, within

from .sources import node_at, parsed, span_of

TEXT = """\
@first
def outer(a, größe=1):
    for i in a:
        größe.data[i] += (a
                          * 2)  # twice
        if i: a.add_(1); a.sub_(1)
        else:
            b = lambda t: t.mul_(2)
    return größe
"""


@pytest.mark.parametrize(
    "piece", ["größe.data[i]", "a\n                          * 2", "a.sub_(1)", "t.mul_(2)", "lambda t: t.mul_(2)"]
)
def test_a_node_is_found_at_its_text_and_gives_it_back(piece: str) -> None:
    file = parsed(TEXT)
    node = node_at(file, piece, ast.expr)
    assert file.source(node) == piece
    assert file.span(node) == span_of(TEXT, piece)


def test_what_is_below_a_node_is_the_same_before_and_after_the_whole_tree_was_walked() -> None:
    alone, tree = ast.parse(TEXT), ast.parse(TEXT)
    assert len(list(walk(tree, ast.AST))) == len(list(ast.walk(tree)))
    for one, other in zip(ast.walk(alone), ast.walk(tree), strict=True):
        below = [ast.dump(each) for each in walk(other, ast.AST)]
        assert [ast.dump(each) for each in walk(one, ast.AST)] == below
        assert sorted(below) == sorted(ast.dump(each) for each in ast.walk(other))


def test_outside_of_every_node_is_the_module() -> None:
    file = parsed("a = 1\n\n\nb = 2\n")
    assert file.at(span_of(file.text, "a = 1\n\n\nb")) is file.tree


def test_what_is_around_a_node() -> None:
    file = parsed(TEXT)
    call = node_at(file, "a.sub_(1)")
    (outer,) = functions(file.tree)
    assert file.scope(call) is outer
    assert isinstance(file.scope(node_at(file, "t.mul_(2)")), ast.Lambda)
    assert [type(one) for one in file.loops(call)] == [ast.For]
    assert file.loops(node_at(file, "t.mul_(2)")) == []
    statement = file.statement(call)
    assert isinstance(statement, ast.Expr)
    assert [file.source(one) for one in file.block(statement)] == ["a.add_(1)", "a.sub_(1)"]


def test_the_head_of_a_loop_is_no_simple_statement() -> None:
    file = parsed("for i in items:\n    pass\n")
    head = node_at(file, "items")
    assert file.statement(head) is None
    assert isinstance(file.nearest(head, ast.stmt), ast.For)


def test_blanks_before_a_statement() -> None:
    file = parsed(TEXT)
    rows = {file.source(one).split("\n")[0]: one for one in walk(file.tree, ast.stmt)}
    assert file.indent(rows["return größe"]) == "    "
    assert file.indent(rows["a.sub_(1)"]) is None
    assert file.indent(rows["a.add_(1)"]) is None
    assert file.own_lines(rows["größe.data[i] += (a"]) == " " * 8
    assert parsed("a = 1; b = 2\n").own_lines(parsed("a = 1; b = 2\n").tree.body[0]) is None
    assert file.indentation() == "    "
    assert parsed("if a:\n\tb = 1\n").indentation() == "\t"
    assert parsed("if a: b = 1\nc = 2\n").indentation() == "    "


def test_nodes_come_in_the_order_of_the_text() -> None:
    file = parsed("@one(two)\ndef f(a=three, *, b=four):\n    return five if six else seven\n")
    names = [one.id for one in walk(file.tree, ast.Name)]
    assert names == ["one", "two", "three", "four", "five", "six", "seven"]


def test_a_file_that_is_missing_too_long_or_no_python_has_no_syntax() -> None:
    assert parse("a.py", "%matplotlib inline\n") is None
    assert parse("a.py", "a = '\0'\n") is None
    assert file_at("nowhere/at/all.py") is None
    linecache.cache["long.py"] = (1, None, ["#" * (LONGEST + 1) + "\n"], "long.py")
    assert file_at("long.py") is None
    assert place_of(None) is None
    assert statement_of(None) is None
    code = compile("a = 1\n", "nowhere/at/all.py", "exec")
    assert place_of(Site(code, 4)) is None


def test_a_long_expression_is_walked_without_recursion() -> None:
    file = parsed("x = " + " + ".join(["a"] * 900) + "\n")
    assert len(list(walk(file.tree, ast.Name))) == 901
    assert len(list(within(file.tree, ast.Name))) == 901


def test_a_line_ends_before_its_carriage_return() -> None:
    assert parsed("a = 1\r\nb = 2\r\n").end_of_line(1) == (1, 6)
