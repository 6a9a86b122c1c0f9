"""The bytes that a patch keeps for backward, against what PyTorch's allocator holds when backward begins."""

from __future__ import annotations

import json

from noclobber.fix.proof.trials import launcher
from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.launcher import launching
from tests import served

MEASURE = """
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
import noclobber
from noclobber.observe.gradient_trace import evidence
from noclobber.observe.torch_api.autograd import graph

class Enough(Exception):
    pass

def stopped_at(text, number, look):
    calls = 0
    def engine(outputs, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            found.append(look(outputs))
            raise Enough
        return native(outputs, *args, **kwargs)
    found, native = [], torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = engine
    try:
        exec(text, {})
    except Enough:
        return found[0]
    finally:
        torch.autograd._engine_run_backward = native

def allocated(text, number):
    watched = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    def look(outputs):
        watched.__exit__(None, None, None)
        return [one.nbytes() for one in watched.profiler.kineto_results.events() if one.name() == "[memory]"]
    watched.__enter__()
    return sum(stopped_at(text, number, look))

def kept(text, number):
    with noclobber.watch(contents=True):
        return stopped_at(text, number, lambda outputs: evidence.saved_bytes(graph.roots_of(outputs)))

allocated("import torch; torch.ones(3, requires_grad=True).sum().backward()", 1)  # what a first run allocates for good
print(json.dumps([(allocated(*one), kept(*one)) for one in json.loads(sys.stdin.read())]))
"""
"""Prints the bytes that are allocated at a backward call, freed ones counted below zero, and those that we count."""
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
    "a row of an input": ("return (x[:64] * w[:64]).sum()", "x[:64]", "x[:64].clone()"),
    "what has a name": ("global h\n    h = w.exp()\n    return (h * h).sum()", "h * h", "h.clone() * h"),
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


def measured(*programs):
    """The bytes allocated, and those counted, at a backward call of each program."""
    return json.loads(served.run(["-c", MEASURE], stdin=json.dumps(programs)).stdout)


def test_the_bytes_more_are_those_of_the_allocator():
    texts = [(program(body), program(body).replace(old, new)) for body, old, new in PROGRAMS.values()]
    found = iter(measured(*((text, 1) for pair in texts for text in pair)))
    for name, (allocated, kept), (more, more_kept) in zip(PROGRAMS, found, found, strict=True):
        assert more_kept - kept == more - allocated, name


def test_the_backward_that_keeps_most_counts(tmp_path, monkeypatch):
    after = LATER.replace("h += 1", "h = h + 1")
    (allocated, _), (more, _) = measured((LATER, 2), (after, 2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "_spawned", served.spawned)
    found = []
    with launching(["program.py"]) as launched:
        for text in (LATER, after):
            (tmp_path / "program.py").write_text(text)
            found.append(launched.run(Order("search", 3, 3600)).saved)
    assert found[1] - found[0] == more - allocated == 4096
