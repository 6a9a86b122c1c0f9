"""Writes out of place, from their text: every operator and precedence, chains, flags, and what must be left alone."""

from __future__ import annotations

import ast

import pytest

from noclobber.syntax.tree import Place
from noclobber.syntax.writes import Form, WriteSyntax, loses_write, out_of_place, write_at

from . import sources


def write(line: str, piece: str) -> WriteSyntax:
    """The write at a piece of a line."""
    file = sources.parsed(f"{line}\n")
    return write_at(Place(file, sources.node_at(file, piece)))


def edited(line: str, piece: str | None = None) -> str | None:
    """The line after the edits for the write at `piece`; None where there are none."""
    found = write(line, piece or line.strip())
    edits = out_of_place(found)
    return sources.edited(found.file, edits).removesuffix("\n") if edits else None


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
        ("t.add_(x)", None, "t = t + x"),
        ("t.mul_(a + b)", None, "t = t * (a + b)"),
        ("t.sub_(a - b)", None, "t = t - (a - b)"),
        ("t.add_(*xs)", None, "t = t.add(*xs)"),
        ("self.t.add_(x, alpha=2)", None, "self.t = self.t.add(x, alpha=2)"),
        ("t.mul_(2).add_(x)", "t.mul_(2)", "t = t.mul(2).add(x)"),
        ("t = t.relu_()", "t.relu_()", "t = t.relu()"),
        ("torch.relu_(t)", None, "t = torch.relu(t)"),
        ("y = F.relu(t, inplace=True)", "F.relu(t, inplace=True)", "y = F.relu(t)"),
        ("y = f(F.dropout(t, 0.5, True, inplace=True))", "F.dropout(t, 0.5, True, inplace=True)",
         "y = f(F.dropout(t, 0.5, True))"),
        ("F.relu(t, inplace=True)", None, "t = F.relu(t)"),
        ("y = F.relu(inplace=True, input=t)", "F.relu(inplace=True, input=t)", "y = F.relu(input=t)"),
        ("y = F.relu(t, True)", "F.relu(t, True)", "y = F.relu(t)"),
        ("y = F.dropout((a + b), inplace=True)", "F.dropout((a + b), inplace=True)", "y = F.dropout((a + b))"),
        ("torch.mul(a, b, out=h)", None, "h = torch.mul(a, b)"),
        ("y = t.add_(x)", "t.add_(x)", "y = t.add(x)"),
        ("f(t.add_(x))", "t.add_(x)", "f(t.add(x))"),
        ("t.data.mul_(2)", None, "t = t * 2"),
        ("h[h < 0] = 0", "h[h < 0]", "h = h.masked_fill(h < 0, 0)"),
        ("self.h[1.0 < self.h] = -1.0", "self.h[1.0 < self.h]", "self.h = self.h.masked_fill(1.0 < self.h, -1.0)"),
    ],
)  # fmt: skip
def test_methods_and_flags(line: str, piece: str | None, wanted: str) -> None:
    assert edited(line, piece) == wanted


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ("t.copy_(x)", None),
        ("t.zero_()", None),
        ("t.view(3).add_(x)", None),
        ("f().add_(x)", None),
        ("hs[f()] += e", None),
        ("t[0] = x", "t[0]"),
        ("t[x > 0] = 0", "t[x > 0]"),
        ("t[t > x] = 0", "t[t > x]"),
        ("t[t > 0] = x", "t[t > 0]"),
        ("s = t[t > 0] = 0", "t[t > 0]"),
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


def test_an_edit_may_span_lines() -> None:
    assert edited("h += (a\n      * b)", "h += (a\n      * b)") == "h = h + (a\n      * b)"
    assert edited("h += a[\n    0]", "h += a[\n    0]") == "h = h + (a[\n    0])"


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
    assert write(line, piece).form is wanted, ast.dump(ast.parse(line))


@pytest.mark.parametrize(
    ("line", "base"),
    [
        ("torch.view_as_real(spec)[..., 0].mul_(2)", "spec"),
        ("torch.transpose(h, 0, 1).mul_(2)", "h"),
        ("self.h.data[0].view(-1).mul_(2)", "self.h"),
        ("torch.cat([a, b]).mul_(2)", ""),
    ],
)
def test_whose_bytes_a_view_shows(line: str, base: str) -> None:
    found = write(line, line).base
    assert (ast.unparse(found) if found is not None else "") == base


@pytest.mark.parametrize(
    ("body", "loses"),
    [
        ("h = x.exp()\nkept = h\nh *= 2\nloss = h.sum() + kept.sum()", True),
        ("h = x.exp()\nkept = h\nh *= 2\nloss = h.sum()", False),
        ("h = x.exp()\nkept = h.clone()\nh *= 2\nloss = h.sum() + kept.sum()", False),
        ("h = x.exp()\nh *= 2\nkept = h\nloss = h.sum() + kept.sum()", False),
    ],
)
def test_a_new_tensor_does_not_reach_another_name_that_is_read_below(body: str, loses: bool) -> None:
    file = sources.parsed(f"{body}\n")
    assert loses_write(write_at(Place(file, sources.node_at(file, "h *= 2")))) is loses
