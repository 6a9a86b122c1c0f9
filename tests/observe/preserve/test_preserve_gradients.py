"""Under `preserve`, gradients that are saved and then added to: the only memory that the engine itself overwrites."""

import pytest
import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.torch_api.autograd import hook_stack
from tests.observe.preserve.test_preserve import leaf, right
from tests.tensors import all_equal

pytestmark = pytest.mark.usefixtures("either_size")


def edge(w):
    return GradientEdge(get_gradient_edge(w).node, 0)


BACKWARDS = {
    "a loss": lambda w: w.pow(2).sum().backward(),
    "two losses": lambda w: torch.autograd.backward([leaf(2).sum(), (w * 3).sum()]),
    "the leaf": lambda w: w.backward(torch.full_like(w, 2.0)),
    "an edge to the leaf": lambda w: torch.autograd.backward(edge(w), torch.full_like(w, 2.0)),
    "the leaf among others": lambda w: (w.exp() * leaf(4)).sum().backward(inputs=[w]),
    "a graph that goes on": lambda w: w.pow(2).sum().backward(retain_graph=True),
    "in a view": lambda w: w.view(2, 2).t().exp().sum().backward(),
}
GRADIENTS = {
    "of its own": lambda: torch.linspace(1, 2, 4),
    "in a bucket": lambda: torch.linspace(1, 2, 12)[4:8],
    "in a bucket, far apart": lambda: torch.linspace(1, 2, 12)[::3],
}


@pytest.mark.parametrize("gradient", GRADIENTS.values(), ids=GRADIENTS.keys())
@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS.keys())
def test_a_gradient_that_is_saved_is_kept(backward, gradient):
    def program():
        w, v = leaf(4), leaf(4)
        w.grad = gradient()
        penalty = (w.grad * v).sum() + (w.grad[1:] * v[1:].exp()).sum()
        backward(w)
        return torch.autograd.grad(penalty, v)[0], w.grad

    with noclobber.preserve() as kept:
        ours = program()
    assert all_equal(ours, right(program))
    assert "add_" in kept.report


def logged(backward):
    """What was written while the log was on, by name."""
    names = []

    def look(written, *rest):
        names.append(written.op)

    with noclobber.preserve():
        CONTEXT.attend(look)
        try:
            backward()
        finally:
            CONTEXT.ignore(look)
    return names


def test_the_log_rests_in_a_backward_that_adds_to_no_save(monkeypatch):
    monkeypatch.setattr(hook_stack, "program_has_hooks", lambda: False)  # of the tests before this one
    w, v = leaf(4), leaf(4)
    w.grad = torch.zeros(4)
    assert "aten::add_" not in logged(lambda: (w.exp() * w).sum().backward())
    assert w.grad.count_nonzero() == 4
    penalty = []
    assert "aten::add_" in logged(lambda: (penalty.append(w.grad * v), (w.exp() * w).sum().backward()))


def test_a_region_run_anew_while_the_log_rests_has_its_writes_logged():
    def program():
        x, c = leaf(4), torch.ones(4)

        def region(h):
            a = (h * c).exp()
            return a.sin().mul_(2) * a

        y = torch.utils.checkpoint.checkpoint(region, x, use_reentrant=False).sum()
        c.mul_(7)
        y.backward()
        return x.grad

    with noclobber.preserve():
        ours = program()
    x = leaf(4)
    a = x.exp()
    (a.sin() * 2 * a).sum().backward()
    assert torch.equal(ours, x.grad)


HELD = {
    "a sum of two": lambda x: (x * 2 + x.exp()).sum(),
    "a stack of views": lambda x: torch.stack([x[0], x[1:3].sum(), x.sum()]).sum(),
}


@pytest.mark.parametrize("make", HELD.values(), ids=HELD.keys())
def test_the_engine_adds_in_place_only_to_what_nobody_holds(make):
    """The fact: a gradient that the program was given, and keeps, is left as it was."""
    x = leaf(4)
    middle = x * 1
    loss = make(middle)
    given = torch.tensor(1.0)
    kept = []
    handle = middle.register_hook(lambda gradient: kept.append((gradient, gradient.clone())))
    loss.backward(given, retain_graph=True)
    handle.remove()
    loss.backward(given)
    assert given == 1
    ((gradient, copy),) = kept
    assert torch.equal(gradient, copy)
