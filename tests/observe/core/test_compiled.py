"""What compiled code saves: PyTorch compares no version of it, its bytes are compared all the same."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from tests.observe.hearing import bare, hear, is_marked


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles with g++")
def test_what_inductor_saves_is_compared_by_its_bytes():
    """It keeps the memory without its version counter, so PyTorch raises nothing (torch 2.13)."""

    def program():
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        y = torch.compile(torch.matmul)(x, w).sum()
        x.mul_(5)  # written
        y.backward()
        return w.grad

    right = torch.full((3, 3), 3.0)
    assert not torch.equal(bare(program), right)
    heard, gradient = hear(program, contents=True)
    assert torch.equal(gradient, bare(program))
    (clobber,) = heard.clobbers
    assert is_marked(clobber.writes[-1].site, "written")


_STEP = """
import contextlib, os, sys, warnings
import torch
from torch._dynamo import graph_break
import noclobber

model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.exp()


@torch.compile(backend="eager")
def step():
    optimizer.zero_grad()
    y = model(torch.ones(2, 3))
    graph_break()
    loss = Exp.apply(y).sum()
    graph_break()
    torch.zeros(3).add_(1)
    graph_break()
    loss.backward()
    graph_break()
    optimizer.step()


modes = {
    "bare": contextlib.nullcontext,
    "install": noclobber.install,
    "watch": noclobber.watch,
    "contents": lambda: noclobber.watch(contents=True),
    "preserve": noclobber.preserve,
}
for mode, around in modes.items():  # each from the same beginning
    sys.stdout.flush()
    if not os.fork():
        with warnings.catch_warnings(record=True) as warned, around():
            warnings.simplefilter("always")
            for _ in range(3):
                step()
        print(mode, sorted({str(one.message).partition(chr(10))[0] for one in warned}), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each mode runs in a fork")
def test_torch_compile_warns_of_no_function_of_noclobber():
    """A region with graph breaks runs the optimizer, backward and kernels while torch.compile looks at each frame."""
    command = [sys.executable, "-W", "ignore", "-c", _STEP]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    warned = dict(line.split(" ", 1) for line in printed.splitlines())
    assert warned == dict.fromkeys(("bare", "install", "watch", "contents", "preserve"), warned["bare"])
