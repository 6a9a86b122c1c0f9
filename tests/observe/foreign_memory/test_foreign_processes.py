"""Memory that processes share: a forked child's write is blamed on the child's line, a spawned one's is a window."""

import os

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from tests.observe.foreign import line, marked, watched

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(function, *args, start="fork"):
    process = mp.get_context(start).Process(target=function, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def shrink(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)  # written


def step(model):
    """Without a backward, which PyTorch refuses in a child where its engine has started threads before the fork."""
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(model.parameters(), lr=0.5).step()  # written


def through_numpy(model):
    model.weight.detach().numpy()[:] = 0


def elsewhere(model):
    with torch.no_grad():
        model.weight[1:].zero_()
        model.weight[:1].fill_(7)  # written


def program(child, start="fork"):
    model = nn.Linear(3, 3).share_memory()  # handed
    x = torch.ones(2, 3, requires_grad=True)
    y = model(x).sum()  # saved
    run(child, model, start=start)
    y.backward()  # read
    return x.grad


@pytest.mark.parametrize("child", [shrink, step], ids=lambda c: c.__name__)
def test_the_line_of_a_forked_child(child):
    (write,) = watched(program, child).writes
    assert ({line(write.site)}, write.via, write.since) == (marked(child, "written"), "process", None)
    assert write.op == {shrink: "aten::mul_", step: "SGD.step"}[child]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_it_is_a_window_where_the_child_does_not_say(start):
    child = through_numpy if start == "fork" else shrink
    (write,) = watched(program, child, start).writes
    assert (write.via, write.handed.by) == ("process", "share_memory_")
    assert [{line(site)} for site in (write.since, write.handed.site, write.site)] == [
        marked(program, mark) for mark in ("saved", "handed", "read")
    ]


def test_only_writes_to_the_bytes_of_the_save_are_named():
    def rows():
        model = nn.Linear(3, 3).share_memory()
        y = (torch.ones(3, requires_grad=True) * model.weight[0].detach()).sum()
        run(elsewhere, model)
        y.backward()

    (write,) = watched(rows).writes
    assert {line(write.site)} == marked(elsewhere, "written")


def test_nothing_is_found_where_the_child_wrote_nothing_that_was_saved():
    def alone():
        model = nn.Linear(3, 3)
        y = model(torch.ones(2, 3, requires_grad=True)).sum()
        run(shrink, model)
        y.backward()

    assert watched(alone).writes == []


def test_no_file_is_left_open():
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    for _ in range(3):
        watched(program, shrink)
    after = os.listdir("/proc/self/fd") if before else []
    assert len(after) <= len(before) + 1  # multiprocessing keeps one of its own
