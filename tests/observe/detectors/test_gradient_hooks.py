"""Hooks and Functions that write into gradients: what others hold of them, what is meant, and what is seen of it."""

import pytest
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from tests.observe.detectors.test_gradient_writes import W, function, in_place
from tests.observe.hearing import bare, hear, is_marked
from tests.tensors import all_equal


def returned():
    """`grad` returns the gradient of h as it was handed to the Function, which then scales it."""
    x = torch.ones(3, requires_grad=True)
    h = function(in_place).apply(x * 1)
    return torch.autograd.grad((h * W).sum(), (h, x))


def test_a_gradient_that_grad_returns():
    heard, (of_h, of_x) = hear(returned)
    assert torch.equal(of_h, 10 * W)
    assert torch.equal(of_x, 10 * W)
    (event,) = heard.events
    assert is_marked(event.write.site, "written")
    assert event.read.call == "grad"


@pytest.mark.parametrize("further", [True, False])
def test_a_gradient_that_its_own_hook_scales(further):
    """PyTorch puts the gradient of h aside before the hook where it is handed on, and after it where that is all."""

    def program(write):
        x = torch.ones(3, requires_grad=True)
        h = x * 1
        h.register_hook(write)
        return torch.autograd.grad((h * W).sum(), (h, x) if further else (h,))

    heard, (of_h, *_) = hear(lambda: program(in_place))
    assert torch.equal(of_h, 10 * W)
    assert torch.equal(program(lambda g: g * 10)[0], W) == further
    assert len(heard.events) == further


@pytest.mark.parametrize("refill", [True, False])
def test_the_gradient_that_the_program_passes(refill):
    def program():
        x, given, results = torch.ones(3, requires_grad=True), W.clone(), []
        for _ in range(2):
            if refill:
                given = given.copy_(W)
            h = function(in_place).apply(x * 1)
            results += torch.autograd.grad(h, x, given)
        return results

    heard, (first, second) = hear(program)
    assert torch.equal(first, second) == refill
    assert [is_marked(event.write.site, "written") for event in heard.events] == [True] * (not refill)


@pytest.mark.skipif(not hasattr(BackwardCFunction, "apply_boxed"), reason="of later releases than this one")
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_that_come_in_a_list(shared):
    class Boxed(function(in_place)):
        boxed_grads_call = True

        @staticmethod
        def backward(ctx, gradients):
            return in_place(gradients.pop())

    def program():
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        side = y * 1
        ((side if shared else side.detach()) + Boxed.apply(x * 1)).backward(W.clone())
        return x.grad, y.grad

    heard, (of_x, of_y) = hear(program)
    assert torch.equal(of_x, 10 * W)
    assert torch.equal(of_y, 10 * W) if shared else of_y is None
    assert len(heard.events) == shared


def test_a_leaf_that_took_over_a_view_of_the_gradient():
    def program():
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        a = y * 1
        a.register_hook(in_place)
        z = a + x.view(1, 3).view(3)
        (z * W).sum().backward()
        return x.grad, y.grad

    heard, (of_x, _) = hear(program)
    assert torch.equal(of_x, W) == (not heard.events)


def doubled(parameter):
    parameter.grad.mul_(2)


@pytest.mark.parametrize("kind", ["leaf", "accumulated", "module", "node", "prehook"])
def test_hooks_that_scale_their_own_gradient(kind):
    def program():
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        if kind == "leaf":
            net[0].weight.register_hook(lambda g: g.mul_(2))
        if kind == "accumulated":
            for p in net.parameters():
                p.register_post_accumulate_grad_hook(doubled)
        if kind == "module":
            net[1].register_full_backward_hook(lambda module, given, out: (given[0].mul_(2),))
        y = net(torch.ones(2, 3))
        if kind == "node":
            y.grad_fn.register_hook(lambda made, given: None if made[0] is None else made[0].mul_(2) and None)
        if kind == "prehook":
            y.grad_fn.register_prehook(lambda given: (given[0].mul_(2),))
        (y * 2).sum().backward()
        return [p.grad for p in net.parameters()]

    heard, gradients = hear(program)
    assert all_equal(gradients, bare(program))
    assert not heard.events
    assert not heard.clobbers


@pytest.mark.parametrize("kind", ["tensor", "module", "node"])
def test_hooks_registered_before_the_watch(kind):
    net = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    side = x * 3
    h = net(x)
    if kind == "tensor":
        h.register_hook(in_place)
    if kind == "module":
        net.register_full_backward_hook(lambda module, given, out: (in_place(out[0]),)[1:] or None)
    if kind == "node":
        h.grad_fn.register_prehook(lambda given: (in_place(given[0]),))

    def program():
        y = net(x) if kind == "module" else h
        ((side + y) * W).sum().backward()

    heard, _ = hear(program)
    assert [is_marked(event.write.site, "written") for event in heard.events] == [True]


def test_a_backward_that_spoils_the_save_of_another_node():
    class Overwriting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            x.data.mul_(2)  # written
            return g * x

    def program(shared):
        x = torch.ones(3, requires_grad=True)
        h = x * 1.5
        side = h.sin() if shared else h
        (Overwriting.apply(h) + side).sum().backward()
        return x.grad

    heard, _ = hear(lambda: program(True))
    (clobber,) = heard.clobbers
    assert clobber.save.node == "SinBackward0"
    assert is_marked(clobber.writes[0].site, "written")
    assert not clobber.writes[0].in_forward
    heard, gradient = hear(lambda: program(False))
    assert torch.equal(gradient, torch.full((3,), 1.5 * 4))
    assert not heard.clobbers
    assert not heard.events
