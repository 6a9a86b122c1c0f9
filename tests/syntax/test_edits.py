"""Edits of whole expressions and statements: each gives Python that says what it should, and leaves the rest."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noclobber.syntax.edits import (
    after,
    append,
    before,
    remove,
    undecorated,
    under_no_grad,
    unwrapped,
    whole_lines,
    with_argument,
    with_comment,
    without_argument,
    without_retaining,
)
from noclobber.syntax.names import arguments
from noclobber.syntax.tree import functions

from .sources import edited, node_at, parsed

names = st.sampled_from(["a", "h.data", "x[0]", "f(a)", "größe"])
expressions = st.recursive(
    names,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*@"), inner).map(lambda one: f"{one[0]} {one[1]} ({one[2]})"),
        inner.map(lambda one: f"-({one})"),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"g({one}, k=({one}))"),
        st.tuples(inner, inner).map(lambda one: f"({one[0]}, {one[1]})"),
        st.tuples(inner, inner).map(lambda one: f"({one[0]} if {one[1]} else b)"),
    ),
    max_leaves=6,
)


@given(expressions, st.data())
def test_a_method_called_on_any_expression(text: str, data: st.DataObject) -> None:
    file = parsed(f"y = {text}\n")
    (statement,) = file.tree.body
    assert isinstance(statement, ast.Assign)
    nodes = [one for one in ast.walk(statement.value) if isinstance(one, ast.expr)]
    node = data.draw(st.sampled_from(nodes))
    wanted = ast.dump(node)
    changed = ast.parse(edited(file, [append(file, node, ".clone()")]))
    cloned = [
        ast.dump(one.func.value)
        for one in ast.walk(changed)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "clone"
    ]
    assert cloned == [wanted]


@pytest.mark.parametrize(
    ("line", "piece", "wanted"),
    [
        ("y = a + b", "a + b", "y = (a + b).clone()"),
        ("y = (a + b)", "a + b", "y = (a + b).clone()"),
        ("y = f(a + b)", "a + b", "y = f((a + b).clone())"),
        ("y = f(h[:, 0])", "h[:, 0]", "y = f(h[:, 0].clone())"),
    ],
)
def test_parentheses_come_only_where_they_are_needed(line: str, piece: str, wanted: str) -> None:
    file = parsed(f"{line}\n")
    assert edited(file, [append(file, node_at(file, piece, ast.expr), ".clone()")]) == f"{wanted}\n"


BLOCK = "def f(h):\n    # why\n    h = h + 1  # more\n    g(h); h.sub_(1)\n    return h\n"


def test_statements_put_in() -> None:
    file = parsed(BLOCK)
    row = node_at(file, "h + 1")
    edit = before(file, row, "a = 1", "b = 2")
    assert edit is not None
    assert "    # why\n    a = 1\n    b = 2\n    h = h + 1  # more\n" in edited(file, [edit])
    edit = after(file, row, "a = 1")
    assert edit is not None
    assert "    h = h + 1  # more\n    a = 1\n    g(h)" in edited(file, [edit])
    shared = node_at(file, "h.sub_(1)")
    for found, wanted in ((before, "g(h); a = 1; h.sub_(1)\n"), (after, "g(h); h.sub_(1); a = 1\n")):
        edit = found(file, shared, "a = 1")
        assert edit is not None
        assert wanted in edited(file, [edit])


def test_no_statement_is_put_in_before_an_elif() -> None:
    file = parsed("if a:\n    b()\nelif f(h):\n    c()\nelse:\n    if g(h):\n        d()\n")
    assert before(file, node_at(file, "f(h)"), "h = 1") is None
    edits = [before(file, node_at(file, piece), "h = 1") for piece in ("a", "c()", "g(h)")]
    assert edited(file, [one for one in edits if one is not None]) == (
        "h = 1\nif a:\n    b()\nelif f(h):\n    h = 1\n    c()\nelse:\n    h = 1\n    if g(h):\n        d()\n"
    )


def test_statements_taken_out() -> None:
    file = parsed(BLOCK)
    edit = remove(file, node_at(file, "h + 1"))
    assert edit is not None
    assert edited(file, [edit]) == BLOCK.replace("    h = h + 1  # more\n", "")
    assert remove(file, node_at(file, "h.sub_(1)")) is None
    alone = parsed("for i in a:\n    g(i)\n")
    edit = remove(alone, node_at(alone, "g(i)"))
    assert edit is not None
    assert edited(alone, [edit]) == "for i in a:\n    pass\n"
    assert remove(parsed("if a:\n    b()\nc()\n"), parsed("if a:\n    b()\nc()\n").tree.body[0]) is None


@pytest.mark.parametrize(("lines", "left"), [((1, 1), "b\nc"), ((2, 2), "a\nc"), ((3, 3), "a\nb"), ((2, 3), "a")])
def test_lines_of_a_file_without_an_end_of_its_own(lines: tuple[int, int], left: str) -> None:
    file = parsed("a\nb\nc")
    assert edited(file, [whole_lines(file, *lines)]) == left


def test_a_comment_goes_with_its_statement() -> None:
    file = parsed(BLOCK)
    assert with_comment(file, file.tree.body[0].body[0]) == "h = h + 1  # more"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("f()", "f(k=1)"),
        ("f(a)", "f(a, k=1)"),
        ("f(a, b=2)", "f(a, b=2, k=1)"),
        ("f(a,)", "f(a, k=1)"),
        ("f((a))", "f((a), k=1)"),
        ("f(p for p in ps)", "f((p for p in ps), k=1)"),
        ("f((p for p in ps))", "f((p for p in ps), k=1)"),
        ("f(\n    p for p in ps\n)", "f((\n    p for p in ps\n), k=1)"),
        ("f(\n    a,\n)", "f(\n    a,\n k=1)"),
        ("f(\n    a\n)", "f(\n    a, k=1\n)"),
        ("f(\n    a,  # why\n)", "f(\n    a,  # why\n k=1)"),
        ("f(\n    a  # why, and more\n)", "f(\n    a, k=1  # why, and more\n)"),
    ],
)
def test_a_call_gets_an_argument(call: str, wanted: str) -> None:
    file = parsed(f"{call}\n")
    found = node_at(file, call, ast.Call)
    text = edited(file, [with_argument(file, found, "k=1")])
    assert text == f"{wanted}\n"
    ast.parse(text)


@pytest.mark.parametrize(
    ("call", "argument", "wanted"),
    [
        ("f(a, k=1)", "k=1", "f(a)"),
        ("f(k=1, b=2)", "k=1", "f(b=2)"),
        ("f(k=1)", "k=1", "f()"),
        ("f((a + b), k=1)", "k=1", "f((a + b))"),
        ("f(a, k=1, b=2)", "k=1", "f(a, b=2)"),
        ("f(\n    a,\n    k=1,\n)", "k=1", "f(\n    a,\n)"),
    ],
)
def test_a_call_loses_an_argument(call: str, argument: str, wanted: str) -> None:
    file = parsed(f"{call}\n")
    found = node_at(file, call, ast.Call)
    gone = next(one for one in arguments(found) if file.source(one) == argument)
    edit = without_argument(file, found, gone)
    assert edit is not None
    assert edited(file, [edit]) == f"{wanted}\n"


def test_only_a_graph_that_is_retained_is_let_go() -> None:
    file = parsed("loss.backward(retain_graph=True)\nloss.backward(retain_graph=keep)\n")
    first, second = (one.value for one in file.tree.body)  # type: ignore[attr-defined]
    edit = without_retaining(file, first)
    assert edit is not None
    assert edited(file, [edit]).startswith("loss.backward()\n")
    assert without_retaining(file, second) is None


def test_statements_under_no_grad() -> None:
    file = parsed("def f(w):\n  w -= (1 *\n        w.grad)\n  w.clamp_(0)  # clip\n  return w\n")
    rows = file.tree.body[0].body  # type: ignore[attr-defined]
    text = edited(file, under_no_grad(file, rows[:2]))
    assert text == (
        "def f(w):\n  with torch.no_grad():\n    w -= (1 *\n          w.grad)\n    w.clamp_(0)  # clip\n  return w\n"
    )
    shared = parsed("a -= 1; b -= 1\n")
    assert under_no_grad(shared, shared.tree.body[:1]) == ()


@pytest.mark.parametrize("text", ['"""one\n  two"""', 'f"""one {a}\n  two"""', 'b"""one\n  two"""', '"one\\\n  two"'])
def test_a_text_of_several_lines_is_not_moved(text: str) -> None:
    file = parsed(f"w -= scale({text}) * w.grad\n")
    assert under_no_grad(file, file.tree.body) == ()
    several = parsed(f"with a:\n    b = {text}\n")
    assert unwrapped(several, several.tree.body[0]) == ()  # type: ignore[arg-type]


def test_a_with_taken_off() -> None:
    file = parsed("def f():\n  with a, b(\n  ):\n    # first\n    c = (1,\n      2)  # two\n\n    d()\n  e()\n")
    (block,) = (one for one in ast.walk(file.tree) if isinstance(one, ast.With))
    text = "def f():\n  # first\n  c = (1,\n    2)  # two\n\n  d()\n  e()\n"
    assert edited(file, unwrapped(file, block)) == text
    inline = parsed("with a: b()\n")
    assert unwrapped(inline, inline.tree.body[0]) == ()  # type: ignore[arg-type]


def test_a_decorator_taken_out() -> None:
    file = parsed("@first\n@torch.no_grad(\n)\ndef f():\n    pass\n")
    (function,) = functions(file.tree)
    assert edited(file, [undecorated(file, function.decorator_list[1])]) == "@first\ndef f():\n    pass\n"
