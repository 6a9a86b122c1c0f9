"""A backward that writes again to memory in which it has returned a gradient: told where somebody still needs it."""

import pytest
import torch

from tests.observe.hearing import bare, hear


def scaled(keeps):
    """A Function whose backward computes in a buffer of its own, and returns what `keeps` makes of that."""
    buffer = torch.empty(3)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by):
            ctx.by = by
            return x * by

        @staticmethod
        def backward(ctx, g):
            torch.mul(g, ctx.by, out=buffer)  # written
            return keeps(buffer), None

    return Scaled.apply


def leaf():
    return torch.ones(3, requires_grad=True)


def two_calls(scale):
    a = leaf()
    scale(a, 2.0).sum().backward()
    scale(a, 5.0).sum().backward()
    return [a.grad]


def two_leaves(scale):
    a, b = leaf(), leaf()
    (scale(a, 2.0) + scale(b, 5.0)).sum().backward()
    return [a.grad, b.grad]


def set_to_zero(scale):
    a = leaf()
    for by in (2.0, 5.0):
        if a.grad is not None:
            a.grad.zero_()
        scale(a, by).sum().backward()
    return [a.grad]


def two_branches(scale):
    weights = [torch.full((3,), 2.0, requires_grad=True), torch.full((3,), 3.0, requires_grad=True)]
    for _ in range(3):
        one, other = [weight.exp() for weight in weights]
        gradients = torch.autograd.grad((scale(one, 2.0) + scale(other, 5.0)).sum(), weights)
    return gradients


WRONG = [two_calls, two_leaves, set_to_zero, two_branches]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("keeps", [torch.Tensor.detach, lambda buffer: buffer.view(3), lambda buffer: buffer[:]])
def test_a_gradient_that_is_overwritten(program, contents, keeps):
    heard, gradients = hear(lambda: program(scaled(keeps)), contents)
    assert any(not torch.equal(*each) for each in zip(gradients, program(scaled(torch.clone)), strict=True))
    assert all(torch.equal(*each) for each in zip(gradients, bare(lambda: program(scaled(keeps))), strict=True))
    assert heard.events
    for event in heard.events:
        assert event.returned
        assert (event.name, event.write.op) == ("Scaled", "aten::mul")


def new_ones_each_time(scale):
    a = leaf()
    for by in (2.0, 5.0):
        a.grad = None
        scale(a, by).sum().backward()
    return [a.grad]


def one_after_the_other(scale):
    a = leaf()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(scale(scale(a * 2, 2.0).sin(), 5.0).sum(), [a])
    return [gradient.clone()]


def steps(scale):
    a = leaf()
    optimizer = torch.optim.SGD([a], 0.1)
    for by in (2.0, 5.0, 3.0):
        optimizer.zero_grad()
        scale(a, by).sum().backward()
        optimizer.step()
    return [a.detach()]


@pytest.mark.parametrize("program", [new_ones_each_time, one_after_the_other, steps], ids=lambda one: one.__name__)
def test_a_gradient_that_nobody_needs_any_more(program):
    heard, gradients = hear(lambda: program(scaled(torch.Tensor.detach)))
    assert all(torch.equal(*each) for each in zip(gradients, program(scaled(torch.clone)), strict=True))
    assert heard.events == heard.clobbers == []


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_gradients_in_memory_of_their_own(program):
    heard, _ = hear(lambda: program(scaled(torch.clone)))
    assert heard.events == heard.clobbers == []
