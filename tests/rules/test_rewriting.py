"""Edits from source text: every augmented operator, every precedence, chains, flags, and what must be left alone."""

from __future__ import annotations

import ast
import linecache

import pytest

from noclobber.model.operators import WITHOUT_TWIN
from noclobber.rules.shared.rewriting import Form, form, out_of_place

from .places import Program


def edited(line: str, piece: str | None = None, before: str = "") -> str | None:
    """The line after the edit for the write at `piece`; None where there is no edit."""
    program = Program(f"{before}{line}\n")
    edit = out_of_place(program.at(piece or line.strip()))
    if edit is None:
        return None
    assert edit.span.line == edit.span.end_line == before.count("\n") + 1
    return line[: edit.span.column - 1] + edit.replacement + line[edit.span.end_column - 1 :]


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "//", "%", "@", "**", "&", "|", "^", "<<", ">>"])
def test_every_augmented_operator(symbol: str) -> None:
    assert edited(f"h {symbol}= e") == f"h = h {symbol} e"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("h += a * b", "h = h + a * b"),
        ("h += a + b", "h = h + (a + b)"),
        ("h -= a - b", "h = h - (a - b)"),
        ("h *= a + b", "h = h * (a + b)"),
        ("h *= a ** b", "h = h * a ** b"),
        ("h /= -a", "h = h / -a"),
        ("h **= -a", "h = h ** -a"),
        ("h **= a ** b", "h = h ** a ** b"),
        ("h **= a * b", "h = h ** (a * b)"),
        ("h += a if c else b", "h = h + (a if c else b)"),
        ("h += (a if c else b)", "h = h + (a if c else b)"),
        ("h &= a > b", "h = h & (a > b)"),
        ("h += not a", "h = h + (not a)"),
        ("h += f(a, b)[0].c", "h = h + f(a, b)[0].c"),
        ("self.h += e", "self.h = self.h + e"),
        ("hs[i - 1] += e", "hs[i - 1] = hs[i - 1] + e"),
        ("größe += wärme * 'ü'", "größe = größe + wärme * 'ü'"),
    ],
)
def test_augmented_assignments(line: str, wanted: str) -> None:
    result = edited(line)
    assert result == wanted
    found = ast.parse(line).body[0]
    assert isinstance(found, ast.AugAssign)
    rewritten = ast.parse(wanted).body[0]
    assert isinstance(rewritten, ast.Assign)
    assert isinstance(rewritten.value, ast.BinOp)
    assert ast.dump(rewritten.value.right) == ast.dump(found.value), "precedence has changed the meaning"


@pytest.mark.parametrize(
    ("line", "piece", "wanted"),
    [
        ("t.add_(x)", None, "t = t.add(x)"),
        ("self.t.add_(x, alpha=2)", None, "self.t = self.t.add(x, alpha=2)"),
        ("t.mul_(2).add_(x)", "t.mul_(2)", "t = t.mul(2).add(x)"),
        ("t = t.relu_()", "t.relu_()", "t = t.relu()"),
        ("torch.relu_(t)", None, "t = torch.relu(t)"),
        ("y = F.relu(t, inplace=True)", "F.relu(t, inplace=True)", "y = F.relu(t, inplace=False)"),
        ("y = f(F.dropout(t, 0.5, True, inplace=True))", "F.dropout(t, 0.5, True, inplace=True)",
         "y = f(F.dropout(t, 0.5, True, inplace=False))"),
    ],
)  # fmt: skip
def test_methods_and_flags(line: str, piece: str | None, wanted: str) -> None:
    assert edited(line, piece) == wanted


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ("t.copy_(x)", None),
        ("t.zero_()", None),
        ("y = t.add_(x)", "t.add_(x)"),
        ("f(t.add_(x))", "t.add_(x)"),
        ("t.view(3).add_(x)", None),
        ("f().add_(x)", None),
        ("hs[f()] += e", None),
        ("t[0] = x", "t[0]"),
        ("y = net(t)", "net(t)"),
        ("y = F.relu(t, inplace=flag)", "F.relu(t, inplace=flag)"),
        ("init.normal_(t)", None),
        ("torch.nn.init.constant_(t, 0.1)", None),
        ("torch.nn.utils.clip_grad_norm_(t, 1.0)", None),
        ("clip_grad_norm_(t, 1.0)", None),
        ("relu_(t)", None),
    ],
)
def test_anything_else_is_left_alone(line: str, piece: str | None) -> None:
    assert edited(line, piece) is None


def test_the_variable_of_a_loop_is_left_alone() -> None:
    assert edited("    p -= g", before="for p in params:\n") is None
    assert edited("    p.h -= g", before="for p in params:\n") == "    p.h = p.h - g"


def test_an_edit_may_span_lines() -> None:
    program = Program("h += (a\n      * b)\n")
    edit = out_of_place(program.at("h += (a\n      * b)"))
    assert edit is not None
    assert edit.replacement == "h = h + (a\n      * b)"
    assert (edit.span.line, edit.span.end_line) == (1, 2)


def test_a_file_that_is_missing_or_is_no_python_gives_nothing() -> None:
    program = Program("h += e\n")
    site = program.at("h += e")
    linecache.cache[program.path] = (1, None, ["%matplotlib inline\n"], program.path)
    assert form(site) is Form.OTHER
    assert out_of_place(site) is None
    linecache.cache[program.path] = (0, None, [], program.path)
    assert form(site) is Form.OTHER
    assert out_of_place(site) is None
    assert out_of_place(None) is None


@pytest.mark.parametrize(
    ("line", "piece", "wanted"),
    [
        ("h += e", "h += e", Form.AUGMENTED),
        ("h[0] += e", "h[0]", Form.ITEM),
        ("h.add_(e)", "h.add_(e)", Form.METHOD),
        ("torch.mul(a, b, out=h)", "torch.mul(a, b, out=h)", Form.METHOD),
        ("F.relu(h, inplace=True)", "F.relu(h, inplace=True)", Form.FLAG),
        ("h[0] = e", "h[0]", Form.ITEM),
        ("y = self.block(h)", "self.block(h)", Form.CALL),
        ("h.add_(self.block(h))", "self.block(h)", Form.CALL),
        ("y = a + b", "a + b", Form.OTHER),
    ],
)
def test_forms(line: str, piece: str, wanted: Form) -> None:
    program = Program(f"{line}\n")
    found = program.at(piece)
    assert form(found) is wanted, ast.dump(ast.parse(line))


def test_names_without_a_twin_are_written_with_their_underscore() -> None:
    assert all(name.endswith("_") for name in WITHOUT_TWIN)
