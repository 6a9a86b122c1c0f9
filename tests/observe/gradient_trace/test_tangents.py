"""Forward mode gives, along one direction, the right gradient of programs that PyTorch refuses to run in reverse mode.

What is right is computed by the program as it should have been written, in float64, by reverse mode.
"""

from __future__ import annotations

import json

import pytest
import torch

from noclobber.observe.gradient_trace import forward_mode
from tests import served

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
w, x = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
"""
SAME = {
    "a leaf": ("w += x\nloss = (w * w).sum()", "v = w + x\nloss = (v * v).sum()"),
    "a view of a leaf": ("w.view(-1)[2:5] = x[0, :3]\nloss = w.exp().sum()",
                         "v = w.clone()\nv.view(-1)[2:5] = x[0, :3]\nloss = v.exp().sum()"),
    "views of one operation": ("h = w * x\nfor row in h:\n    row.mul_(2).add_(1)\nloss = h.square().sum()",
                               "h = (w * x) * 2 + 1\nloss = h.square().sum()"),
    "a view made without gradients": ("h = w * x\nwith torch.no_grad():\n    row = h[0]\nrow.mul_(3)\n"
                                      "loss = h.sin().sum()",
                                      "h = w * x\nh[0] *= 3\nloss = h.sin().sum()"),
    "memory that spreads": ("h = (w * x)[:1].expand(3, 4)\nh.mul_(2).add_(w)\nloss = h.exp().sum()",
                            "h = (w * x)[:1].expand(3, 4) * 2 + w\nloss = h.exp().sum()"),
    "memory that is read as well": ("h = w * x\nh[1:] = h[:-1]\nloss = h.exp().sum()",
                                    "h = w * x\nh = torch.cat([h[:1], h[:-1]])\nloss = h.exp().sum()"),
    "what is made for inference": ("with torch.inference_mode():\n    h = w * 2\nloss = (h * x).sum()",
                                   "h = (w * 2).detach()\nloss = (h * x).sum()"),
    "values that are set through `.data`": ("w.data.view(-1)[2:5] = 7\nw += x\nloss = w.exp().sum()",
                                           "w.data.view(-1)[2:5] = 7\nloss = (w + x).exp().sum()"),
    "what is detached": ("h = w.detach() * x\nloss = (h * w.data).sum()",
                         "h = w.detach() * x\nloss = (h * w.detach()).sum()"),
    "what is computed without gradients": ("with torch.no_grad():\n    t = w * x\nw[0] = 0.0\nloss = (w * t).sum()",
                                           "t = (w * x).detach()\nv = w.clone()\nv[0] = 0.0\nloss = (v * t).sum()"),
    "where gradients are turned on again": (
        "with torch.no_grad():\n    with torch.enable_grad():\n        h = w * x\n"
        "    assert not torch.is_grad_enabled()\nassert torch.is_grad_enabled()\nw += 1\nloss = h.exp().sum()",
        "loss = (w * x).exp().sum()"),
    "a module that is initialised": (
        "net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Tanh())\nnn.init.normal_(net[0].weight)\n"
        "loss = net(w * x).square().mean()",
        "net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Tanh())\nnn.init.normal_(net[0].weight)\n"
        "loss = net(w * x).square().mean()"),
    "rows of an embedding, one of which only pads": (
        "w[2] = x[0]\nh = F.embedding(torch.tensor([[0, 2], [0, 1]]), w, padding_idx=-3)\n"
        "loss = (h * x[1]).exp().sum()",
        "v = torch.cat([w[:2], x[:1]])\nh = F.embedding(torch.tensor([[0, 2], [0, 1]]), v, padding_idx=0)\n"
        "loss = (h * x[1]).exp().sum()"),
    "a custom Function": (
        "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a):\n"
        "        ctx.mark_dirty(a)\n        ctx.save_for_backward(a)\n        return a.mul_(2)\n"
        "loss = Twice.apply(w[0]).exp().sum()",
        "loss = (w[0] * 2).exp().sum()"),
    "a custom Function set up apart": (
        "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(a):\n        return a * 2\n"
        "    @staticmethod\n    def setup_context(ctx, given, made):\n        raise AssertionError\n"
        "loss = Twice.apply(w).exp().sum()",
        "loss = (w * 2).exp().sum()"),
    "hooks, which are left aside": ("h = w * x\nh.register_hook(lambda g: g * 2).remove()\nh.retain_grad()\nw += 1\n"
                                    "loss = h.exp().sum()", "loss = (w * x).exp().sum()"),
    "complex numbers": ("z = torch.complex(w, x)\nz[0] *= 2j\nw += 1\n"
                        "loss = z.abs().square().sum() + z.exp().real.sum()",
                        "z = torch.complex(w, x)\nz = torch.cat([z[:1] * 2j, z[1:]])\n"
                        "loss = z.abs().square().sum() + z.exp().real.sum()"),
}  # fmt: skip
UPDATED = {
    "a leaf": ("w += 1\nloss = (w * w * x).sum()", "w = (w + 1).detach().requires_grad_()\nloss = (w * w * x).sum()"),
    "a part of a leaf, changed": ("w.view(-1)[2:5] -= 7\nloss = w.exp().sum()",
                                  "w.data.view(-1)[2:5] -= 7\nloss = w.exp().sum()"),
    "a part of a leaf": ("w.view(-1)[2] = 7\nloss = w.exp().sum()",
                         "w.data.view(-1)[2] = 7\nloss = w.exp().sum()"),
}  # fmt: skip
OTHER = {
    "a detach too many": ("w += 1\nloss = (w * x).exp().sum()", "v = (w + 1).detach()\nloss = (v * x).exp().sum()"),
    "a factor": ("w += 1\nloss = (w * x).sum()", "v = w * 1.01 + 1\nloss = (v * x).sum()"),
    "the update, where it is computed with": ("w *= 2\nloss = (w * x).sum()", "w.data *= 2\nloss = (w * x).sum()"),
}
CHILD = """
import json, sys
import torch
from noclobber.observe.gradient_trace import forward_mode
mode = forward_mode.ForwardMode(updates=json.loads(sys.argv[1]))
mode.begin()
found = []
for text in json.loads(sys.stdin.read()):
    names = {}
    exec(text, names)
    found.append((forward_mode.along_roots([names["loss"]], [None]), mode.rewritten, mode.given, mode.custom))
print(json.dumps(found))
"""


def by_forward_mode(programs, *, updates=False):
    """In a process of its own, which forward mode has from its begin to its end."""
    done = served.run(["-c", CHILD, json.dumps(updates)], stdin=json.dumps([HEAD + one for one, _ in programs]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_reverse_mode(text):
    """The right gradient along the direction, summed over the leaves that get one."""
    names = {}
    exec(HEAD + text, names)
    leaves = [names["w"], names["x"], *(names["net"].parameters() if "net" in names else ())]
    before = torch.get_default_dtype()
    try:
        gradients = torch.autograd.grad(names["loss"], leaves, allow_unused=True)
        pairs = zip(gradients, leaves, strict=True)
        return forward_mode.total(
            [forward_mode.along(gradient, leaf) for gradient, leaf in pairs if gradient is not None]
        )
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def in_single_precision_afterwards():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("programs", "updates"), [(SAME, False), (UPDATED, True)])
def test_the_derivative_is_the_right_one(programs, updates):
    found = by_forward_mode(programs.values(), updates=updates)
    for (name, (_, right)), (along, *_) in zip(programs.items(), found, strict=True):
        wanted = by_reverse_mode(right)
        assert along is not None, name
        assert forward_mode.same(wanted, along), (name, wanted, along)
        assert wanted[1] > 0.1, name


def test_another_gradient_is_told_apart():
    for (name, (_, other)), (along, *_) in zip(OTHER.items(), by_forward_mode(OTHER.values()), strict=True):
        assert not forward_mode.same(by_reverse_mode(other), along), name


def test_what_is_known_besides():
    plain = ("loss = (w * x).sum()", "")
    updates = [UPDATED["a leaf"], UPDATED["a part of a leaf, changed"]]
    found = by_forward_mode([plain, *updates, SAME["a leaf"], SAME["a custom Function"]])
    marks = [[False] * 3, [True, False, False], [True, False, False], [True, True, False], [True, True, True]]
    assert [marks for _, *marks in found] == marks


def test_no_leaf_no_derivative():
    assert by_forward_mode([("loss = w.detach().sum()", "")])[0][0] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_equal_bytes_have_equal_directions(dtype):
    leaf = torch.randn(50, 3).to(dtype)
    copy = torch.empty(3, 50, dtype=dtype).T.copy_(leaf)
    assert torch.equal(forward_mode.direction(leaf), forward_mode.direction(copy))
    assert not torch.equal(forward_mode.direction(leaf), forward_mode.direction(leaf + 1))


def test_a_small_mistake_in_a_large_gradient_is_told():
    leaf = torch.randn(1000, 1000)
    gradient = torch.randn(1000, 1000)
    right = forward_mode.along(gradient, leaf)
    for wrong in (torch.cat([gradient[:500] * 1.05, gradient[500:]]), gradient.roll(1)):
        assert not forward_mode.same(right, forward_mode.along(wrong, leaf))
    assert forward_mode.same(right, forward_mode.along(gradient * (1 + 1e-6 * torch.randn(1000, 1000)), leaf))


def test_a_large_leaf_is_gone_through_in_parts(monkeypatch):
    leaf, gradient = torch.randn(1000), torch.randn(1000)
    direction, along = forward_mode.direction(leaf), forward_mode.along(gradient, leaf)
    monkeypatch.setattr(forward_mode, "_AT_ONCE", 7)
    assert torch.equal(forward_mode.direction(leaf), direction)
    # The terms of the sum are about 1 each; the sum itself may be close to 0.
    assert forward_mode.along(gradient, leaf) == pytest.approx(along, rel=1e-12, abs=1e-11)
