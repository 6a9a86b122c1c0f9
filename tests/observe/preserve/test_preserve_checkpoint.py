"""Checkpointed regions under `preserve`: what they read again is what they read in forward, and nobody else sees it."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import noclobber
from tests.observe.preserve.test_preserve import leaf

pytestmark = pytest.mark.usefixtures("either_size")


def direct(region, *args):
    """The region without a checkpoint."""
    return region(*args)


def reentrant(region, *args):
    return checkpoint(region, *args, use_reentrant=True)


def not_reentrant(region, *args):
    return checkpoint(region, *args, use_reentrant=False)


@pytest.fixture(params=[reentrant, not_reentrant])
def run(request):
    return request.param


def right(program):
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        return program(direct)


def reads_again(change, made=lambda: torch.ones(3, 4) * 2):
    """A region reads `c` from outside, whole and in part; then it is changed."""

    def program(run):
        x, c = leaf(3, 4), made()
        d = c[1:]
        y = run(lambda h: (h * c).sin() * d.sum() + c.exp() * h, x)
        change(c)
        y.sum().backward()
        return [x.grad]

    return program


CHANGES = {
    "whole": lambda c: c.mul_(5),
    "a row": lambda c: c[1].mul_(5),
    "by two writes": lambda c: (c[0].zero_(), c[1:].add_(1)),
    "through data": lambda c: c.data[:, ::2].zero_(),
    "other data": lambda c: setattr(c, "data", torch.zeros(3, 4)),
    "other data, then the old memory": lambda c: (lambda old: (setattr(c, "data", torch.zeros(3, 4)), old.zero_()))(
        c.view_as(c)
    ),
    "another storage of another size": lambda c: c.set_(torch.zeros(2)),
    "transposed": lambda c: c.t_(),
    "joined to the graph": lambda c: c.mul_(leaf(4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_is_read_again(run, change):
    program = reads_again(CHANGES[change])
    with noclobber.preserve():
        ours = program(run)
    torch.testing.assert_close(ours, right(program))


@pytest.mark.parametrize("made", [lambda: torch.ones(4).expand(3, 4), lambda: torch.ones(4, 3).t()])
def test_of_another_layout(run, made):
    program = reads_again(lambda c: (c if c._base is None else c._base).add_(1), made)
    with noclobber.preserve():
        ours = program(run)
    torch.testing.assert_close(ours, right(program))


def test_what_is_there_now_is_back_after_backward(run):
    x, c = leaf(4), torch.ones(4)
    seen = []
    with noclobber.preserve():
        y = run(lambda h: h.sin() * c.exp(), x)
        c.mul_(7)
        address, version = c.data_ptr(), c._version
        x.register_hook(lambda gradient: seen.append(c.tolist()))
        y.sum().backward()
    assert seen == [[7.0] * 4]
    assert (c.tolist(), c.data_ptr(), c._version) == ([7.0] * 4, address, version)


def test_what_is_there_now_is_back_after_an_error(run):
    x, c, calls = leaf(4), torch.ones(4), []

    def region(h):
        calls.append(c.tolist())
        if len(calls) > 1:
            raise KeyError("again")
        return (h * c).sin()

    with noclobber.preserve():
        y = run(region, x)
        c.mul_(7)
        with pytest.raises(KeyError, match="again"):
            y.sum().backward()
    assert calls == [[1.0] * 4] * 2
    assert c.tolist() == [7.0] * 4


@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}])
def test_steps_between_forward_and_backward(run, how):
    def program(run):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(4, 2))
        optimizer, x = torch.optim.AdamW(net.parameters(), lr=0.1, **how), leaf(5, 4)
        losses = [run(net, x * scale).square().sum() for scale in (1, 2, 3)]
        gradients = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward()
            gradients += [p.grad.clone() for p in net.parameters()]
            optimizer.step()
        return gradients

    with noclobber.preserve():
        ours = program(run)
    torch.testing.assert_close(ours, right(program))


def test_statistics_that_are_read_in_evaluation(run):
    def program(run):
        norm, x = nn.BatchNorm1d(4), leaf(5, 4)
        y = run(lambda h: functional.batch_norm(h, norm.running_mean, norm.running_var).sin(), x)
        norm(torch.arange(20.0).view(5, 4))
        y.sum().backward()
        return [x.grad]

    with noclobber.preserve():
        ours = program(run)
    torch.testing.assert_close(ours, right(program))


def test_batch_norm_in_training_keeps_nothing(run):
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), leaf(5, 4)
    with noclobber.preserve() as kept:
        (run(net, x) + run(net, x * 2)).sum().backward()
    assert kept.kept == ()


def overwrites_what_it_reads(run):
    x, state, given = leaf(4), torch.ones(4), torch.ones(4)

    def region(h, given):
        state.mul_(0.5)
        given.mul_(0.5)
        return (h * state * given).sin()

    y, z = run(region, x, given), run(region, x, given)
    (y * 2 + z).sum().backward()
    return [x.grad, state, given]


def overwrites_what_it_made(run):
    x = leaf(4)

    def region(h):
        a = h * 2
        b = (a**2).sum()
        a.mul_(3)
        return (a * b).sin()

    run(region, x).sum().backward()
    return [x.grad]


def overwrites_what_it_saved_from_outside(run):
    x, state = leaf(4), torch.ones(4)

    def region(h):
        a = h * state
        state.mul_(3)
        return a.sin() * state

    y = run(region, x)
    state.zero_()
    y.sum().backward()
    return [x.grad, state]


def regions_in_a_region(run):
    x, c, d = leaf(4), torch.ones(4), torch.ones(4) * 2
    y = run(lambda h: run(lambda g: (g * c).sin() * d, h * d).cos() * c, x)
    c.mul_(3)
    d.mul_(2)
    y.sum().backward()
    return [x.grad]


def a_place_in_the_graph(run):
    x, w = leaf(4), leaf(4)
    c = w * 2
    y = run(lambda h: (h * c).sin() * c, x)
    c.mul_(3)
    y.sum().backward()
    return [x.grad, w.grad]


def a_leaf_that_requires_no_gradient_any_more(run):
    x, c = leaf(4), leaf(4)
    y = run(lambda h: (h * c).sin() * c, x)
    c.requires_grad_(False)
    y.sum().backward()
    return [x.grad, c.grad]


def several_backwards(run):
    x, c = leaf(4), torch.ones(4)
    y = run(lambda h: (h * c).sin() * c, x)
    for scale in (2, 3):
        c.mul_(scale)
        y.sum().backward(retain_graph=True)
    return [x.grad]


PROGRAMS = [
    overwrites_what_it_reads,
    overwrites_what_it_made,
    overwrites_what_it_saved_from_outside,
    regions_in_a_region,
    a_place_in_the_graph,
    a_leaf_that_requires_no_gradient_any_more,
    several_backwards,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_without_a_checkpoint(run, program):
    with noclobber.preserve():
        ours = program(run)
    torch.testing.assert_close(ours, right(program))


def test_numpy_can_not_be_kept_from_it(run):
    pytest.importorskip("numpy")
    with noclobber.preserve():
        x, c = leaf(4), torch.ones(4)
        y = run(lambda h: (h * c).sin(), x)
        c.numpy()[:] = 0
        with pytest.raises(noclobber.ClobberError):
            y.sum().backward()
