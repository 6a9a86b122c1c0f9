"""Mended programs are run: their gradients are those of the program whose saves are read back as they were saved."""

from __future__ import annotations

from textwrap import dedent

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.fix.mending import mended

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
w = torch.randn(3, 3, requires_grad=True)
x = torch.randn(4, 3)
"""
TAIL = "loss.backward()\n"

TANH, EXP, SIGMOID = (f"h = torch.{name}(x @ w)\n" for name in ("tanh", "exp", "sigmoid"))
SUM = "loss = h.sum()\n"
CLOBBERS = {
    "augmented": (TANH, "h += x", SUM, "torch.tanh(x @ w)", "result"),
    "method": (EXP, "h.mul_(2).sub_(x)", SUM, "torch.exp(x @ w)", "result"),
    "flag": (SIGMOID, "F.relu(h, inplace=True)", SUM, "torch.sigmoid(x @ w)", "result"),
    "module": (SIGMOID + "act = nn.ReLU(True)\n", "act(h)", SUM, "torch.sigmoid(x @ w)", "result"),
    "index": (SIGMOID + "h[:, 0] = 1.0\n", "h[h < 0.3] = 0.0", SUM, "torch.sigmoid(x @ w)", "result"),
    "view": (EXP, "h.view(-1).add_(1)", SUM, "torch.exp(x @ w)", "result"),
    "buffer": (
        "b, loss = torch.ones(3), 0\nfor r in x @ w:\n    ",
        "b.copy_(2 * b)",
        "    loss = loss + (r * b).sum()\n",
        "r * b",
        "other",
    ),
    "rows": (
        "h = torch.ones(5, 3)\nfor t in range(4):\n    ",
        "h[t + 1] = torch.tanh(x[t] + h[t] @ w)",
        SUM,
        "h[t] @ w",
        "self",
    ),
    "weights": ("net = nn.Linear(3, 3)\nh = net(x @ w)\n", "net.weight.data.mul_(2)", SUM, "net(x @ w)", "self"),
}
"""What comes before a write, the write, what comes after it; what saved, and which of its tensors."""


@pytest.mark.parametrize("case", CLOBBERS)
def test_some_early_candidate_gives_the_right_gradients(case: str) -> None:
    """Right is what backward gives when each save is read back with the bytes that it had."""
    before, write, after, save, field = CLOBBERS[case]
    source = f"{HEAD}{before}{write}\n{after}{TAIL}"
    kind, name = ("parameter", "net.weight") if case == "weights" else ("tensor", "")
    with saved_tensors_hooks(torch.clone, lambda saved: saved):
        right = gradient(source)
    op = "aten::relu_" if case in ("flag", "module") else "aten::mul_"
    write = write.partition(" = ")[0]
    tried = mended("NC101", source, write=write, save=save, field=field, kind=kind, name=name, op=op)
    first = next((n for n, text in enumerate(tried) if is_right(text, right)), None)
    assert first is not None
    assert first < 4


REFUSED = {
    "NC302": ("v = w.view(-1)\n", "v[0] = 0.0", "v.pow(2).sum()", "w.pow(2).sum() - w[0, 0] ** 2"),
    "NC303": ("h = x @ w\nfor r in h:\n    ", "r.mul_(2)", "h.pow(2).sum()", "(2 * (x @ w)).pow(2).sum()"),
    "NC304": (
        "h = x @ w\na, b, c, d = h.unbind(0)\n",
        "a.mul_(2)",
        "(a * b).sum()",
        "(2 * (x @ w)[0] * (x @ w)[1]).sum()",
    ),
    "NC307": ("h = w.sum(0).expand(4, 3)\n", "h.add_(x)", "h.pow(2).sum()", "(w.sum(0) + x).pow(2).sum()"),
    "NC308": ("k = torch.ones(3, dtype=torch.long)\n", "k /= 2", "(w * k).sum()", "(w / 2).sum()"),
    "NC309": ("h = x @ w\ny = torch.empty(4, 3)\n", "torch.mul(h, 2, out=y)", "y.sum()", "(2 * x @ w).sum()"),
}
"""What comes before a write, the write, the loss; and the loss without a write."""


@pytest.mark.parametrize("code", REFUSED)
def test_the_first_candidate_for_a_refused_write_computes_what_was_meant(code: str) -> None:
    """But for one that takes no gradient through the write."""
    before, write, loss, same = REFUSED[code]
    source = f"{HEAD}{before}{write}\nloss = {loss}\n{TAIL}"
    right = gradient(f"{HEAD}loss = {same}\n{TAIL}")
    tried = [text for text in mended(code, source, write=write.partition(" = ")[0]) if "no_grad" not in text]
    assert is_right(tried[0], right)


def test_a_step_moved_below_the_last_backward_steps_with_its_own_gradients() -> None:
    source = dedent("""
        a, b = nn.Linear(3, 3), nn.Linear(3, 1)
        a_opt, b_opt = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (a, b))
        out = b(a(x))
        first, second = out.mean(), out.pow(2).mean()
        b_opt.zero_grad()
        first.backward(retain_graph=True)
        b_opt.step()
        a_opt.zero_grad()
        second.backward()
        a_opt.step()
        loss = (w * 1).sum() + b.weight.sum() + a.weight.sum()
    """)
    with saved_tensors_hooks(torch.clone, lambda saved: saved):
        right = ran(HEAD + source + TAIL)
    tried = mended("NC103", HEAD + source + TAIL, write="b_opt.step()", read="second.backward()", op="SGD.step")
    moved = next(ran(text) for text in tried if "inputs=" in text)
    for net in ("a", "b"):
        assert torch.equal(moved[net].weight, right[net].weight)


def gradient(source: str) -> torch.Tensor:
    """The gradient of `w` in a program."""
    found = ran(source)["w"].grad
    assert isinstance(found, torch.Tensor)
    return found


def ran(source: str) -> dict[str, object]:
    """The names that a program leaves."""
    names: dict[str, object] = {}
    exec(compile(source, "train.py", "exec"), names)
    return names


def is_right(source: str, right: torch.Tensor) -> bool:
    """Whether a program runs and gives the gradient."""
    try:
        return torch.allclose(gradient(source), right)
    except (RuntimeError, TypeError, NameError, AttributeError):
        return False
