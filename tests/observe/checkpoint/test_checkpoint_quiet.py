"""Regions of torch.utils.checkpoint that drift in no way, and all that must stay as it is without noclobber."""

import functools
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from tests.observe.hearing import bare, hear
from tests.tensors import all_equal

MODES = pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
WITNESSES = pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])


def leaf(*shape):
    return torch.ones(*shape or (3,), requires_grad=True)


def dropped(reentrant):
    x, drop = torch.randn(50, 3, requires_grad=True), nn.Dropout()
    checkpoint(lambda t: (drop(t) * t).exp(), x, use_reentrant=reentrant).sum().backward()
    return x.grad


def legal(reentrant):
    """Writes its own intermediates in place, and trains a batch norm that another region uses as well."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Conv2d(2, 2, 3))
    x = torch.randn(2, 1, 9, 9, requires_grad=True)
    y = checkpoint(lambda t: net(t).mul_(2).exp(), x, use_reentrant=reentrant)
    z = checkpoint(net, x * 2, use_reentrant=reentrant)
    (y.mul_(3).sum() + z.sum()).backward()
    return x.grad


def recurrent(reentrant):
    net, x = nn.LSTM(4, 4, 2, dropout=0.2), torch.randn(5, 3, 4, requires_grad=True)
    checkpoint(net, x, use_reentrant=reentrant)[0].sum().backward()
    return x.grad


def rounding(reentrant):
    """Without gradients singular values are computed by another algorithm."""
    x = torch.randn(8, 8, requires_grad=True)
    checkpoint(torch.linalg.svdvals, x, use_reentrant=reentrant).sum().backward()
    return x.grad


def halved(reentrant):
    net, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(net, x, use_reentrant=reentrant)
    y.sum().backward()
    return x.grad


def in_a_thread(reentrant):
    made = []
    thread = threading.Thread(target=lambda: made.append(legal(reentrant)))
    thread.start()
    thread.join()
    return made[0]


def other_parameters(reentrant):
    """The region can reach both networks, runs one of them, and the other is stepped."""
    nets, x = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]), leaf(1, 3)
    y = checkpoint(lambda t: nets[0](t).tanh(), x, use_reentrant=reentrant)
    with torch.no_grad():
        nets[1].weight.mul_(2)
    y.sum().backward()
    return x.grad


def overwritten(reentrant):
    """What was computed from what is written later is filled anew, where autograd does not see it."""
    table, x = nn.Parameter(torch.ones(4, 3)), leaf(3)

    def region(t):
        rows = nn.functional.embedding(torch.tensor([2, 0]), table)
        nn.init.constant_(rows, 0.5)
        return rows.detach() + t

    y = checkpoint(region, x, use_reentrant=reentrant)
    nn.init.constant_(table, 0.1)
    y.sum().backward()
    return x.grad


def the_only_one(reentrant):
    """What was taken has changed, but of one element it can only be the first."""
    scale, x = torch.ones(3), leaf(3)
    y = checkpoint(lambda t: (t.sum() + scale.sum()).topk(1)[0], x, use_reentrant=reentrant)
    scale.data.fill_(5)
    y.sum().backward()
    return x.grad


QUIET = [legal, overwritten, the_only_one, recurrent, rounding, halved, in_a_thread, other_parameters, dropped]


@pytest.mark.parametrize("program", QUIET, ids=lambda program: program.__name__)
@MODES
@WITNESSES
def test_the_same_bytes_are_no_drift(program, reentrant, contents):
    heard, gradient = hear(lambda: program(reentrant), contents)
    assert heard.events == []
    assert heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: program(reentrant)))


def _net():
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh()) for _ in range(4)))


def ways():
    net, x = _net(), torch.randn(3, 4, requires_grad=True)
    keep = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

    def nested(t):
        return checkpoint(net[2:], checkpoint(net[:2], t, use_reentrant=False), use_reentrant=False)

    with set_checkpoint_early_stop(False):
        yield checkpoint(net, x, use_reentrant=False), x
    yield checkpoint(nested, x, use_reentrant=False), x
    yield checkpoint(net, x, use_reentrant=False, context_fn=keep), x
    yield checkpoint(net, x, use_reentrant=False, debug=True), x
    yield checkpoint(net, x, use_reentrant=False, determinism_check="none"), x
    yield checkpoint_sequential(net, 2, x, use_reentrant=False), x


def test_every_way_to_checkpoint_behaves_as_bare():
    def program():
        return [torch.autograd.grad(y.sum(), x)[0] for y, x in ways()]

    heard, gradients = hear(program)
    assert heard.events == []
    assert heard.clobbers == []
    assert all_equal(gradients, bare(program))


def test_two_backwards_tell_once():
    def program():
        scale, x = torch.ones(3), leaf()
        y = checkpoint(lambda t: t.exp() * scale, x, use_reentrant=False).sum()
        first = torch.autograd.grad(y, x, retain_graph=True)
        scale.mul_(2)
        return first + torch.autograd.grad(y, x, retain_graph=True) + torch.autograd.grad(y, x)

    heard, gradients = hear(program)
    assert len(heard.events) == 1
    assert all_equal(gradients, bare(program))


def test_what_a_region_raises_is_raised():
    def program():
        runs = []

        def region(t):
            runs.append(t)
            return t.exp().sin() if len(runs) == 1 else t.exp()

        with pytest.raises(torch.utils.checkpoint.CheckpointError) as caught:
            checkpoint(region, leaf(), use_reentrant=False).sum().backward()
        return str(caught.value)

    assert hear(program)[1] == bare(program)


@MODES
def test_no_activation_lives_longer(reentrant):
    def program():
        made = []

        def region(t):
            h = t.exp()
            made.append(weakref.ref(h.untyped_storage()))
            return h.sin()

        y = checkpoint(region, leaf() * 1, use_reentrant=reentrant)
        return made[0]() is None and y is not None

    assert hear(program)[1]


@MODES
@WITNESSES
def test_writing_in_place_under_vmap_in_a_region(reentrant, contents):
    """When the region runs anew, in backward, each write is looked at; what vmap makes has no storage to ask."""

    def program():
        x = torch.randn(4, 3, requires_grad=True)
        checkpoint(torch.vmap(lambda row: row.sin().mul_(2).cos()), x, use_reentrant=reentrant).sum().backward()
        return x.grad

    heard, gradient = hear(program, contents)
    assert heard.events == []
    assert heard.clobbers == []
    assert torch.equal(gradient, bare(program))
