"""Reentrant regions that read something else when they run anew: told where backward reads what comes of it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from noclobber.model.seen.silent import Drift
from tests.observe.hearing import bare, hear


class Stash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.b = b
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g * ctx.b, None


class World:
    """What the regions close over. `x` is what they are given."""

    def __init__(self):
        self.x = torch.linspace(-1, 2, 4, requires_grad=True)
        self.t = torch.linspace(-2, 3, 4)
        self.norm = nn.BatchNorm1d(1)


def inner(h, t):
    return checkpoint(lambda z: z * t, h, use_reentrant=True)


HARMLESS = {
    "added": lambda h, at: at.t + h,
    "added at the end": lambda h, at: (h * h).exp() + at.t.sin(),
    "added in place": lambda h, at: h.sin().add_(at.t),
    "an element": lambda h, at: torch.cat([h.exp(), at.t[:2]]),
    "shapes": lambda h, at: h * torch.full_like(at.t, 3) + at.t,
    "a constant": lambda h, at: torch.where(h > 0, h * 2, 0.5) + at.t,
    "indices": lambda h, at: h[[0, 2]].exp() + at.t[:2],
    "batch norm": lambda h, at: at.norm(h[:, None]).exp() + at.t[:, None],
    "its own scratch": lambda h, at: h.sin() * torch.zeros_like(at.t).copy_(h.detach()) + at.t,
}
HARMFUL = {
    "a factor": lambda h, at: h * at.t,
    "a factor later": lambda h, at: h.exp() * (at.t.sin() + 1),
    "under the sine": lambda h, at: (h + at.t).sin(),
    "in place": lambda h, at: h.sin().add_(at.t).square(),
    "a condition": lambda h, at: torch.where(at.t > 1, h, 2 * h),
    "a number": lambda h, at: h * at.t.sum().item(),
    "a branch": lambda h, at: h.sin() if at.t[0] < -1.5 else h.cos(),
    "through numpy": lambda h, at: h * torch.from_numpy(np.sin(at.t.numpy())),
    "a stash": lambda h, at: Stash.apply(h, at.t * 2),
    "a region in the region": lambda h, at: inner(h, at.t),
    "masked out": lambda h, at: F.relu(h * at.t - 100) + h * at.t.relu(),
}
WRITES = {
    "clamp_": lambda t: t.clamp_(-0.5, 0.5),
    "numpy": lambda t: t.numpy().fill(0.25),
    "data": lambda t: t.data.mul_(0.2),
    "storage": lambda t: t.untyped_storage().copy_(torch.full((4,), 0.1).untyped_storage()),
    "assigned": lambda t: setattr(t, "data", torch.zeros(4)),
}
BY = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def run(region, write=None, direct=False):
    at = World()
    y = region(at.x, at) if direct else checkpoint(lambda h: region(h, at), at.x, use_reentrant=True)
    if write is not None:
        write(at.t)
    y.sum().backward()
    return at.x.grad


@BY
@pytest.mark.parametrize("region", HARMLESS.values(), ids=HARMLESS)
def test_what_reaches_no_save_is_harmless(region, write):
    right = run(region, direct=True)
    heard, gradient = hear(lambda: run(region, write))
    assert torch.equal(gradient, bare(lambda: run(region, write)))
    assert torch.equal(gradient, right)
    assert heard.events == []
    assert heard.clobbers == []


@BY
@pytest.mark.parametrize("region", HARMFUL.values(), ids=HARMFUL)
def test_what_reaches_a_save_is_told_once(region, write):
    right = run(region, direct=True)
    heard, gradient = hear(lambda: run(region, write))
    assert torch.equal(gradient, bare(lambda: run(region, write)))
    assert not torch.equal(gradient, right)
    assert len(heard.events) == 1
    assert heard.events[0].reentrant


def test_a_factor_is_told_though_the_result_is_the_same():
    """The result is 0 either way, and the gradient is the factor."""

    def program():
        t, x = torch.ones(3), torch.zeros(3, requires_grad=True)
        y = checkpoint(lambda h: h * t, x, use_reentrant=True)
        t.mul_(5)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert gradient.tolist() == [5, 5, 5]
    (drift,) = heard.events
    assert drift.save.node == "MulBackward0"
    assert drift.save.tensor.name == "t"
    assert len(drift.writes) == 1


TIMES_ZEROS = {
    "mul": lambda h, t: h * t.sin(),
    "addcmul": lambda h, t: torch.addcmul(t.new_ones(4), t.sin(), h),
    "linear": lambda h, t: F.linear(t.sin()[None], h[None], t.new_ones(1)),
    "mv": lambda h, t: t.sin()[None] @ h,
    "bmm": lambda h, t: t.sin()[None, None] @ h[None, :, None],
    "convolution": lambda h, t: F.conv1d(t.sin()[None, None], h[None, None], padding=2),
    "layer norm": lambda h, t: F.layer_norm(t.sin(), (4,), h, t.new_ones(4)),
    "group norm": lambda h, t: F.group_norm(t.sin()[None, :, None].repeat(1, 1, 2), 2, h, t.new_ones(4)),
    "batch norm": lambda h, t: F.batch_norm(torch.stack([t.sin(), t.cos()]), None, None, h, t.new_ones(4), True),
    "rms norm": lambda h, t: F.rms_norm(t.sin(), (4,), h),
    "a shortcut": lambda h, t: h.new_ones(4) + h * F.layer_norm(t.sin(), (4,)),
}


@pytest.mark.parametrize("region", TIMES_ZEROS.values(), ids=TIMES_ZEROS)
def test_a_change_is_told_though_zeros_hide_it_from_the_result(region):
    """The weights of shortcuts begin with zeros; their gradient is made of what they are multiplied with."""

    def program(write=True, direct=False):
        t, x = torch.linspace(-2, 3, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64, requires_grad=True)
        y = region(x, t) if direct else checkpoint(lambda h: region(h, t), x, use_reentrant=True)
        if write:
            t.numpy()[0] += 1
        y.square().sum().backward() if y.any() else y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert not torch.equal(gradient, program(write=False, direct=True))
    assert [event.reentrant for event in heard.events] == [True]
    assert hear(lambda: program(write=False))[0].events == []


def mkldnn(t):
    return (t.to_mkldnn() * t.to_mkldnn()).to_dense()


def nested(t):
    return (torch.nested.nested_tensor([t]) * torch.nested.nested_tensor([t])).unbind()[0]


UNUSUAL = {
    "sparse": lambda h, t: h * (torch.eye(4).to_sparse_csr() @ t.sin()[:, None])[:, 0],
    "meta": lambda h, t: h * t if (t.to("meta") * t.to("meta")).is_meta else h,
    "nested": lambda h, t: h * nested(t),
    "mkldnn": lambda h, t: h * mkldnn(t),
}


@pytest.mark.parametrize("region", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*nested.*prototype")
def test_a_factor_whose_numbers_lie_elsewhere_is_no_trouble(region):
    def program():
        t, x = torch.linspace(-2, 3, 4), torch.ones(4, requires_grad=True)
        y = checkpoint(lambda h: region(h, t), x, use_reentrant=True)
        t.numpy()[0] += 1
        y.sum().backward()

    assert len(hear(program)[0].events) == 1


ZEROS = torch.zeros(4)
READ_BY_NOBODY = {
    "no gradient": lambda h, t: h * (t * ZEROS),
    "a layer without gradients": lambda h, t: F.gelu(h + F.linear(t, torch.zeros(4, 4))),
    "a norm without gradients": lambda h, t: h * F.layer_norm(t, (4,), ZEROS, torch.ones(4)),
    "a number": lambda h, t: (float(t.mean()), h * 2 + t * ZEROS)[1],
    "nothing": lambda h, t: torch.cat([t.clone()[:0] * h[:0], h * h]),
    "unrelated": lambda h, t: h * ((t.sin() * ZEROS) + 1),
}


@pytest.mark.parametrize("region", READ_BY_NOBODY.values(), ids=READ_BY_NOBODY)
def test_zeros_that_hide_what_nobody_reads_are_harmless(region):
    def program(write=True, direct=False):
        t, x = torch.linspace(-2, 3, 4), torch.ones(4, requires_grad=True)
        y = region(x, t) if direct else checkpoint(lambda h: region(h, t), x, use_reentrant=True)
        if write:
            t.numpy()[0] += 1
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, program(write=False, direct=True))
    assert heard.events == []


def test_the_graph_behind_what_a_region_closes_over_is_no_part_of_it():
    def program():
        x, t = torch.ones(3, requires_grad=True), torch.ones(3)
        before = x.exp().sin()
        y = checkpoint(lambda h: h + before + t, x * 1, use_reentrant=True)
        t.mul_(5)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert heard.events == []


@pytest.mark.parametrize("edit", [torch.Tensor.detach_, lambda one: None])
def test_an_argument_that_was_detached_in_place_gets_no_gradient(edit):
    def program():
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        h = x.exp()
        y = checkpoint(lambda a: (a * w).sin(), h, use_reentrant=True)
        edit(h)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    cut = edit is torch.Tensor.detach_
    assert (gradient is None) == (bare(program) is None) == cut
    assert [write.op for drift in heard.events for write in drift.writes] == ["aten::detach_"] * cut


@pytest.mark.parametrize("uses", [True, False])
def test_a_tensor_that_was_detached_in_place_gets_no_gradient(uses):
    def program(edit=torch.Tensor.detach_):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        given = {"a": x.exp(), "b": x.sin()}
        y = checkpoint(lambda h: h + given["a" if uses else "b"], w, use_reentrant=True)
        edit(given["a"])
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert (gradient is None) == uses
    assert (bare(program) is None) == uses
    assert program(lambda one: None) is not None
    assert [write.op for drift in heard.events for write in drift.writes] == ["aten::detach_"] * uses


def test_another_part_of_the_storage_may_change():
    def program():
        x = torch.ones(6, requires_grad=True)
        one, other = x.chunk(2)
        y = checkpoint(lambda h: torch.cat([h.sin(), one]), other, use_reentrant=True)
        one.data.mul_(5)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert torch.equal(gradient, torch.cat([torch.ones(3), torch.ones(3).cos()]))
    assert heard.events == []


def joined():
    x, t = torch.ones(3, requires_grad=True), torch.ones(3)
    y = checkpoint(lambda h: h + t, x * 1, use_reentrant=True)
    t.add_(x)  # it gets a gradient, which forward knew nothing of
    y.sum().backward()
    return x.grad


def made_by_another_node():
    x = torch.ones(3, requires_grad=True)
    given = x * 1
    y = checkpoint(lambda h: h + given, x * 1, use_reentrant=True)
    given.mul_(3)
    y.sum().backward()
    return x.grad


def overwritten():
    """What a region returns has the same bytes, and its gradient goes by what it was before."""
    x, t = torch.ones(3, requires_grad=True), torch.ones(3)
    y = checkpoint(lambda h: nn.init.constant_(h * (t * 2), 0.5), x, use_reentrant=True)
    t.mul_(3)
    y.sum().backward()
    return x.grad


def test_what_an_operator_on_lists_only_reads_keeps_its_version():
    """It is saved too, and PyTorch would raise."""

    def program():
        x, t = torch.ones(3, requires_grad=True), torch.ones(3)

        def region(h):
            b = h.sin() * 1
            kept = b.exp() * b
            torch._foreach_add_([torch.zeros(3)], [b.detach()])
            return h * t + kept

        y = checkpoint(region, x, use_reentrant=True)
        t.mul_(3)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert [type(event) for event in heard.events] == [Drift]
    assert heard.clobbers == []


@pytest.mark.parametrize(
    ("program", "wrong", "right"), [(joined, 2, 1), (made_by_another_node, 4, 2), (overwritten, 6, 2)]
)
def test_gradients_that_go_elsewhere(program, wrong, right):
    heard, gradient = hear(program)
    assert gradient.tolist() == bare(program).tolist() == [wrong] * 3
    assert wrong != right
    (drift,) = (event for event in heard.events if isinstance(event, Drift))  # the region writes unseen besides
    assert len(drift.writes) == 1
