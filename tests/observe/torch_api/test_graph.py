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
