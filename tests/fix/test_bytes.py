"""The bytes that a patch keeps for backward, against what PyTorch's allocator holds when backward begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noclobber.fix.launch import Launcher
from noclobber.fix.order import Order

ALIVE = """
import os, sys
import torch
from torch.profiler import ProfilerActivity, profile

watched = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
calls = 0
def engine(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        watched.__exit__(None, None, None)
        events = watched.profiler.kineto_results.events()
        print(sum(one.nbytes() for one in events if one.name() == "[memory]"), flush=True)
        os._exit(0)
    return native(*args, **kwargs)
native, torch.autograd._engine_run_backward = torch.autograd._engine_run_backward, engine
watched.__enter__()
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "__main__"})
"""
"""Prints the bytes that are allocated at the backward call of a number; freed ones count below zero."""
PROGRAMS = {
    "out of place": ("h = torch.sigmoid(w)\n    h += 1\n    return (h * h).sum()", "h += 1", "h = h + 1"),
    "a clone of what is read": (
        "h = torch.exp(w)\n    h[:100] = 0\n    return (h * 2).sum()", "exp(w)", "exp(w).clone()"
    ),
    "a clone that nothing keeps": ("h = w * 2\n    h += 1\n    return h.sum()", "h += 1", "h = h.clone() + 1"),
    "a part": ("h = w * 2\n    y = (h[:64] * h[:64]).sum()\n    h += 1\n    return y + h.sum()",
               "(h[:64] * h[:64])", "(h[:64].clone() * h[:64].clone())"),
    "all parameters": ("h = w.tanh()\n    y = h * w\n    return y.sum()", "h * w", "h * w.clone()"),
    "in a loop": ("h = w * 2\n    for _ in range(3):\n        h = h.sigmoid()\n        h *= 2\n    return h.sum()",
                  "h *= 2", "h = h * 2"),
    "an input": ("return (x * w * x).sum()", "x * w", "x.clone() * w"),
    "a row of a parameter": ("return (w[:64] * w[:64]).sum()", "w[:64] * w[:64]", "w[:64].clone() * w[:64].clone()"),
    "half as wide": ("h = w.sigmoid()\n    return (h * h).float().sum()", "h * h", "h.bfloat16() * h.bfloat16()"),
}  # fmt: skip
LATER = """
import torch
w = torch.ones(1024, requires_grad=True)
def loss(step):
    h = torch.sigmoid(w)
    if step:
        h += 1
    return (h * h).sum()
for step in range(2):
    loss(step).backward()
"""


def program(body):
    head = "import torch\nw, x = torch.ones(1024, requires_grad=True), torch.ones(1024)\n"
    return f"{head}def loss():\n    {body}\nloss().backward()\n"


def alive(path, calls=1):
    done = subprocess.run([sys.executable, "-c", ALIVE, str(path), str(calls)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def saved(folder, monkeypatch, *texts):
    """What a run finds saved, of each text."""
    monkeypatch.chdir(folder)
    found = []
    for text in texts:
        (folder / "program.py").write_text(text)
        with Launcher(["program.py"]) as launcher:
            found.append(launcher.run(Order("search", 3, 60)).saved)
    return found


@pytest.mark.parametrize(("body", "old", "new"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_bytes_more_are_those_of_the_allocator(tmp_path, monkeypatch, body, old, new):
    texts = program(body), program(body).replace(old, new)
    held = []
    for name, text in zip(("before.py", "after.py"), texts, strict=True):
        (tmp_path / name).write_text(text)
        held.append(alive(tmp_path / name))
    before, after = saved(tmp_path, monkeypatch, *texts)
    assert after - before == held[1] - held[0]


def test_the_backward_that_keeps_most_counts(tmp_path, monkeypatch):
    (tmp_path / "before.py").write_text(LATER)
    (tmp_path / "after.py").write_text(LATER.replace("h += 1", "h = h + 1"))
    held = [alive(tmp_path / name, 2) for name in ("before.py", "after.py")]
    before, after = saved(tmp_path, monkeypatch, LATER, LATER.replace("h += 1", "h = h + 1"))
    assert after - before == held[1] - held[0] == 4096
