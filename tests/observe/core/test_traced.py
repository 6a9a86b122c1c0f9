"""`torch.jit.trace` records what it records bare, and what it does not let noclobber see is told."""

import pytest
import torch
from torch import nn

import noclobber
from noclobber.observe.transparent.traced_graphs import SAVES, WRITES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def module():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True))


def convolutions():
    return nn.Sequential(nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1))


def written(x):
    y = x * 2
    y.add_(1)
    return y


@pytest.mark.parametrize("make", [module, convolutions, lambda: written])
@pytest.mark.parametrize("block", [noclobber.install, noclobber.watch, noclobber.preserve])
def test_a_graph_is_that_of_bare_torch(make, block):
    x, net = torch.ones(4, 6), make()
    bare = torch.jit.trace(net, x)
    with block():
        traced = torch.jit.trace(net, x)
    assert traced.code == bare.code
    assert torch.equal(traced(x), bare(x))


def test_a_graph_for_export_is_that_of_bare_torch():
    x, net = torch.ones(4, 6), convolutions()
    bare, _ = torch.jit._get_trace_graph(net, x)
    with noclobber.watch() as seen:
        traced, _ = torch.jit._get_trace_graph(net, x)
    assert str(traced) == str(bare)
    assert {SAVES, WRITES} <= set(seen.report.coverage.unseen)


def test_a_method_is_traced_by_its_name():
    net, x = module(), torch.ones(4, 6)
    with noclobber.watch() as seen:
        traced = torch.jit.trace_module(net, {"forward": x}, check_trace=False)
    assert torch.equal(traced(x), net(x))
    assert {SAVES, WRITES} <= set(seen.report.coverage.unseen)  # once
    with noclobber.watch() as seen:
        torch.jit.trace(net, x)
    assert {SAVES, WRITES} <= set(seen.report.coverage.unseen)


def test_saves_and_writes_after_it_are_seen():
    def program():
        torch.jit.trace(written, torch.ones(3))
        torch.jit.trace(convolutions(), torch.ones(4, 6))
        y = torch.ones(3, requires_grad=True).exp()
        y.data.mul_(2)
        y.sum().backward()

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch() as seen:
        program()
    assert [one.code for one in seen.findings] == ["NC201"]
