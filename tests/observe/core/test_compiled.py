"""What compiled code saves: PyTorch compares no version of it, its bytes are compared all the same."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo import graph_break

import noclobber
from noclobber.model.reports.report import COMPILED
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


@torch.compile(backend="eager")
def runs_as_python(x):
    for _ in range(1):
        graph_break()
        x = x.detach().data
        x.set_(torch.ones(3))
    return x


@torch.compile(backend="eager")
def captures_nothing(x):
    return x.data


modes = {
    "bare": contextlib.nullcontext,
    "install": noclobber.install,
    "versions": lambda: noclobber.watch(contents=False),
    "contents": noclobber.watch,
    "preserve": noclobber.preserve,
}
for mode, around in modes.items():  # each from the same beginning
    sys.stdout.flush()
    if not os.fork():
        with warnings.catch_warnings(record=True) as warned, around():
            warnings.simplefilter("always")
            for _ in range(3):
                step()
                runs_as_python(captures_nothing(torch.ones(3)))
        print(mode, sorted({str(one.message).partition(chr(10))[0] for one in warned}), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each mode runs in a fork")
def test_torch_compile_warns_of_no_function_of_noclobber():
    """A region with graph breaks runs the optimizer, backward and kernels while torch.compile looks at each frame."""
    command = [sys.executable, "-W", "ignore", "-c", _STEP]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    warned = dict(line.split(" ", 1) for line in printed.splitlines())
    assert warned == dict.fromkeys(("bare", "install", "versions", "contents", "preserve"), warned["bare"])


def halved(h):
    h.data.mul_(0.5)  # written
    return h


def in_another_function(x, w):
    h = (x @ w).exp()  # saved
    return halved(h)


def in_a_loop(x, w):
    for _ in range(2):
        h = (x @ w).exp()  # saved
        h.data.mul_(0.5)  # written
    return h


def between_graph_breaks(x, w):
    h = x @ w
    graph_break()
    h = h.exp()  # saved
    graph_break()
    h.data.mul_(0.5)  # written
    graph_break()
    return h * 1


def in_one_graph_after_a_break(x, w):
    h = x @ w
    graph_break()
    h = h.exp()  # saved
    h.data.mul_(0.5)  # written
    return h


def back(graph, inputs):
    return graph


@pytest.mark.parametrize("backend", ["eager", back], ids=["eager", "the graph itself"])
@pytest.mark.parametrize("function", [in_another_function, in_a_loop, between_graph_breaks, in_one_graph_after_a_break])
def test_statements_of_a_region_that_runs_as_python(function, backend):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)

    def program():
        w = nn.Parameter(torch.ones(4, 4))
        compiled(torch.ones(2, 4), w).sum().backward()
        return w.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    clobber = heard.clobbers[-1]
    assert is_marked(clobber.save.site, "saved")
    assert is_marked(clobber.writes[-1].site, "written")


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def forward(self, x):
        h = self.layers(x)  # saved
        h.data.mul_(2)  # written
        return h


def test_statements_of_a_compiled_module():
    torch._dynamo.reset()
    net = torch.compile(Layers(), backend="eager")
    heard, _ = hear(lambda: net(torch.ones(2, 4)).sum().backward())
    clobber = heard.clobbers[-1]
    assert is_marked(clobber.save.site, "saved")
    assert is_marked(clobber.writes[-1].site, "written")


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(by)
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


def test_what_a_function_keeps_in_a_region_is_not_called_watched():
    torch._dynamo.reset()
    product = torch.compile(lambda x, by: Product.apply(x, by), backend="eager")
    x, by = torch.ones(3, requires_grad=True), torch.full((3,), 3.0)
    with noclobber.watch() as watched:
        y = product(x, by)
        by.data.zero_()
        y.sum().backward()
    assert x.grad.tolist() == [0.0] * 3
    assert any("Functions keep in compiled regions" in what for what in watched.report.coverage.unseen)


def test_a_graph_that_is_gone_leaves_the_function():
    torch._dynamo.reset()
    compiled = torch.compile(in_another_function, backend="eager")

    def program():
        y = compiled(torch.ones(2, 4), nn.Parameter(torch.ones(4, 4)))
        torch._dynamo.reset()
        y.sum().backward()

    heard, _ = hear(program)
    (write,) = heard.clobbers[-1].writes
    assert write.site.code.co_name in ("halved", "in_another_function")


def not_watched(backend):
    torch._dynamo.reset()
    compiled = torch.compile(halved, backend=backend)
    with warnings.catch_warnings(), noclobber.watch() as seen:
        warnings.simplefilter("ignore")
        compiled(torch.ones(3))
    unseen = "".join(seen.report.coverage.unseen)
    return int(unseen.partition(f"{COMPILED} (")[2].partition(" ")[0] or COMPILED in unseen)


def test_only_a_region_that_does_not_run_as_python_is_not_watched():
    before = not_watched("aot_eager")
    assert before
    assert not_watched("eager") == not_watched(back) == before
    assert not_watched("aot_eager") == before + 1
