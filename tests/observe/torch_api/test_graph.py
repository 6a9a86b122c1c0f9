"""What an autograd graph tells with nothing armed: which node made the input that another one keeps."""

import pytest
import torch
from torch.nn import functional as F

import noclobber
from noclobber.observe.torch_api.autograd import graph


def of_bags():
    weight, factors = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    weight, factors = weight * 2, factors.tan()
    numbers = torch.zeros(5, 5, dtype=torch.int64)
    return F.embedding_bag(numbers, weight, per_sample_weights=factors, mode="sum"), "per_sample_weights", factors


def of_scatter():
    x, y = torch.randn(3, 3, requires_grad=True).exp(), torch.rand(3, 3, requires_grad=True).tan()
    return x.scatter_reduce(0, torch.zeros(3, 3, dtype=torch.int64), y, "prod"), "src", y


def of_matmul():
    x, y = torch.randn(3, 3, requires_grad=True).exp(), torch.rand(3, 3, requires_grad=True).tan()
    return x @ y, "mat2", y


@pytest.mark.parametrize("make", [of_bags, of_scatter, of_matmul])
def test_what_made_an_input_that_a_node_keeps(make):
    """Arguments that are whole numbers lead nowhere, and so are not counted."""
    result, field, kept = make()
    made, _ = graph.source_of(result.grad_fn, field)
    while made.name() == "ViewBackward0":
        made = made.next_functions[0][0]
    assert made is kept.grad_fn


def test_a_stale_operand_behind_indices_is_named_as_bare():
    def message():
        result, _, factors = of_bags()
        factors.mul_(2)
        with pytest.raises(RuntimeError) as caught:
            result.sum().backward()
        return str(caught.value)

    bare = message()
    with pytest.warns(noclobber.ClobberWarning), noclobber.watch():
        assert message() == bare
    assert "which is output 0 of AsStrided" in bare


def test_an_input_without_a_gradient_has_no_edge():
    """A node has an edge for it all the same, which leads nowhere."""
    x, w = torch.rand(2, 3), torch.rand(3, 4, requires_grad=True)
    for made, constant, trained in (
        (x @ w, "self", "mat2"),
        (x * w.sum(1), "self", "other"),
        (torch.addmm(torch.zeros(4), x, w), "mat1", "mat2"),
        (torch.conv1d(x[None], w.view(2, 2, 3)[:, :, :1]), "input", "weight"),
    ):
        assert graph.is_constant(made.grad_fn, constant)
        assert not graph.is_constant(made.grad_fn, trained)
    assert not graph.is_constant((w * 2).exp().grad_fn, "result")
    assert not graph.is_constant(None, "self")


def test_what_is_read_since_a_node_also_by_views():
    w = torch.rand(3, 4, requires_grad=True)
    h = w.sigmoid()
    first = h.sum()
    number = first.grad_fn._sequence_nr() + 1
    assert not graph.is_read_since([first], h.grad_fn, number)
    view = h.view(-1)
    assert not graph.is_read_since([first + view.detach().sum()], h.grad_fn, number)
    assert graph.is_read_since([first + view.exp().sum()], h.grad_fn, number)
    assert graph.is_read_since([first + h.exp().sum()], view.grad_fn, number)
    leaf = (w * 2).grad_fn.next_functions[0][0]
    assert not graph.is_read_since([(w * 3).sum()], leaf, number)
