"""A patch that loses a write to what the program keeps is never proven, though every gradient is right."""

import pytest

from noclobber.fix.proof.repairs import Level

DICT = """\
import torch

class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
        self.states = {}
    def forward(self, x):
        self.states["v"] = torch.tanh(self.lin(x))
        return self.states["v"]

net = Memory()
for _ in range(3):
    loss = net(torch.randn(2, 3)).sum()
    v = net.states["v"]
    v.data.zero_()  # the write
    loss.backward()
"""
ZERO = "v.data.zero_()"
ATTRIBUTE = DICT.replace('states["v"]', "v")
LIST = """\
import torch

w = torch.ones(3, requires_grad=True)
stats = [torch.ones(3)]
loss = (w * stats[0]).sum()
s = stats[0]
s.mul_(0.9)
loss.backward()
"""
RING = """\
import dataclasses
import torch

@dataclasses.dataclass(slots=True)
class Ring:
    data: torch.Tensor
    at: int = 0

def push(row, value):
    row.copy_(value)

w = torch.ones(3, requires_grad=True)
ring = Ring(torch.ones(2, 3))
loss = (w * ring.data[0]).sum()
push(ring.data[0], torch.zeros(3))
loss.backward()
"""
CLOSURE = """\
import torch

def averaging():
    average = torch.ones(3)
    def update(x):
        y = (x * average).sum()
        mine = average
        mine.mul_(0.9)
        return y
    return update

update = averaging()
w = torch.ones(3, requires_grad=True)
update(w).backward()
"""
DEFAULT = """\
import torch

def update(x, average=torch.ones(3)):
    y = (x * average).sum()
    mine = average
    mine.mul_(0.9)
    return y

w = torch.ones(3, requires_grad=True)
update(w).backward()
"""
COUNTER = """\
import torch

def counted(count, w):
    y = (w * count).sum()
    count.add_(1)
    return y

def main():
    w, count = torch.ones(3, requires_grad=True), torch.ones(3)
    counted(count, w).backward()
    (w * 2).sum().backward()

main()
"""


@pytest.mark.parametrize(
    ("text", "write", "right", "lossy", "name"),
    [
        (DICT, ZERO, (ZERO, 'net.states["v"] = torch.zeros_like(v)'), "v = torch.zeros_like(v)", "states['v']"),
        (ATTRIBUTE, ZERO, (ZERO, "net.v = torch.zeros_like(v)"), "v = torch.zeros_like(v)", "Memory.v"),
        (LIST, "s.mul_(0.9)", ("s.mul_(0.9)", "stats[0] = s * 0.9"), "s = s * 0.9", "stats[0]"),
        (RING, "row.copy_(value)", ("w * ring.data[0]", "w * ring.data[0].clone()"), "row = value", "ring.data"),
        (CLOSURE, "mine.mul_(0.9)", ("x * average", "x * average.clone()"), "mine = mine * 0.9", "update.average"),
        (DEFAULT, "mine.mul_(0.9)", ("x * average", "x * average.clone()"), "mine = mine * 0.9", "__defaults__[0]"),
        (COUNTER, "count.add_(1)", ("w * count", "w * count.clone()"), "count = count + 1", "count"),
    ],
)
def test_a_write_to_what_is_kept_is_not_lost(bench, text, write, right, lossy, name):
    it = bench(text)
    lost = it.judged((write, lossy))
    assert not lost.right
    assert lost.why.endswith(f"{name}` holds something else")
    kept = it.judged(right)
    assert kept.level is Level.PROVEN, kept.why


def test_a_number_that_is_kept_stays_that_number_and_times_may_be_others(bench):
    text = """\
import time
import torch

def main():
    w, history, times = torch.ones(3, requires_grad=True), [], []
    for scale in (1.0, 2.0, 3.0):
        h = (w * scale).exp()
        loss = h.sum()
        h.mul_(2)
        history.append(loss.item())
        times.append(time.perf_counter())
        loss.backward()

main()
"""
    it = bench(text)
    mended = ("h.mul_(2)", "h = h * 2")
    assert it.judged(mended, ("loss.item()", "h.sum().item()")).why == "`history[0]` holds something else"
    norm = it.judged(mended, ("loss.item()", "h.norm().item()"))
    assert norm.why == "`history[0]` holds something else"
    assert it.judged(mended).level is Level.PROVEN
