"""Operators rewritten so that they write in place, in every spelling."""

from __future__ import annotations

import pytest

from noclobber.model.seen.hints import Spelling
from noclobber.syntax.in_place import in_place
from noclobber.syntax.tree import Place

from .sources import edited, node_at, parsed

EXPRESSION = Spelling("expression")


def rewritten(
    text: str, piece: str, op: str, argument: int = 0, spelling: Spelling = EXPRESSION, *, numbers: bool = False
) -> list[str]:
    file = parsed(text)
    found = in_place(Place(file, node_at(file, piece)), f"aten::{op}", argument, spelling, numbers=numbers)
    return [edited(file, [one.edit]) for one in found]


@pytest.mark.parametrize(
    ("text", "piece", "op", "argument", "expected"),
    [
        ("y = h * 2", "h * 2", "mul", 0, "y = h.mul_(2)"),
        ("h = h * 2", "h * 2", "mul", 0, "h *= 2"),
        ("self.h = self.h / k", "self.h / k", "div", 0, "self.h /= k"),
        ("y = a - b", "a - b", "sub", 0, "y = a.sub_(b)"),
        ("y = a + b", "a + b", "add", 1, "y = b.add_(a)"),
        ("y = (q @ k) * s + m", "(q @ k) * s", "mul", 0, "y = (q @ k).mul_(s) + m"),
        ("y = -h", "-h", "neg", 0, "y = h.neg_()"),
        ("y = torch.exp(h)", "torch.exp(h)", "exp", 0, "y = h.exp_()"),
        ("y = torch.relu(h)", "torch.relu(h)", "relu", 0, "y = torch.relu_(h)"),
        ("y = torch.add(a, b, alpha=2)", "torch.add(a, b, alpha=2)", "add", 0, "y = a.add_(b, alpha=2)"),
        ("y = h.clip(0, 1)", "h.clip(0, 1)", "clamp", 0, "y = h.clip_(0, 1)"),
        ("y = f(x).exp().sum()", "f(x).exp()", "exp", 0, "y = f(x).exp_().sum()"),
        ("y = h.masked_fill(m, 0)", "h.masked_fill(m, 0)", "masked_fill", 0, "y = h.masked_fill_(m, 0)"),
    ],
)
def test_an_expression(text: str, piece: str, op: str, argument: int, expected: str) -> None:
    assert rewritten(text, piece, op, argument) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = F.relu(h)", "y = F.relu(h, inplace=True)"),
        ("y = F.relu(h,)", "y = F.relu(h, inplace=True)"),
        ("y = F.relu(h, inplace=False)", "y = F.relu(h, inplace=True)"),
    ],
)
def test_a_function_with_a_flag(text: str, expected: str) -> None:
    piece = text.removeprefix("y = ")
    assert rewritten(text, piece, "relu", spelling=Spelling("function", "relu")) == [expected]


def test_a_number_is_never_written() -> None:
    assert rewritten("y = 2 * h", "2 * h", "mul", numbers=True) == ["y = h.mul_(2)"]
    assert rewritten("k = 2\ny = k * h", "k * h", "mul", numbers=True) == ["k = 2\ny = h.mul_(k)"]
    assert rewritten("y = k * h", "k * h", "mul", numbers=True) == ["y = k.mul_(h)", "y = h.mul_(k)"]


@pytest.mark.parametrize(
    ("text", "piece", "op", "spelling"),
    [
        ("y = F.normalize(h)", "F.normalize(h)", "div", EXPRESSION),
        ("y = torch.exp(*h)", "torch.exp(*h)", "exp", EXPRESSION),
        ("y = exp(h)", "exp(h)", "exp", EXPRESSION),
        ("y = a * b", "a * b", "add", EXPRESSION),
        ("y = self.act(h)", "self.act(h)", "relu", Spelling("function", "relu")),
        ("y = F.relu(*h)", "F.relu(*h)", "relu", Spelling("function", "relu")),
        ("y = self.act(h)", "self.act(h)", "relu", Spelling("module", "ReLU")),
    ],
)
def test_what_has_no_text_in_place(text: str, piece: str, op: str, spelling: Spelling) -> None:
    assert rewritten(text, piece, op, spelling=spelling) == []
