"""What a node keeps and does not read, for what it was computed with: to overwrite that is no finding."""

import pytest
import torch

import noclobber
from noclobber.observe import graph
from tests.observe.hearing import bare, hear

aten = torch.ops.aten
NORMS = {
    "native": lambda x, w, mean, var, train: aten.native_batch_norm(x, w, w, mean, var, train, 0.1, 1e-5)[0],
    "legit": lambda x, w, mean, var, train: aten._native_batch_norm_legit(x, w, w, mean, var, train, 0.1, 1e-5)[0],
    "one operator each": lambda x, w, mean, var, train: (
        aten._batch_norm_with_update(x, w, w, mean, var, 0.1, 1e-5)[0]
        if train
        else aten._batch_norm_no_update(x, w, w, mean, var, 0.1, 1e-5)[0]
    ),
}


def by_another_forward(mean, var):
    torch.nn.functional.batch_norm(torch.linspace(-3, 5, 18).reshape(6, 3), mean, var, None, None, True)


def through_data(mean, var):
    mean.data.add_(1)
    var.data.mul_(2)


def normalized(norm, write, *, train, twice):
    def program(writes):
        x = torch.randn(6, 3, requires_grad=True)
        w = torch.randn(3, requires_grad=True)
        mean, var = torch.randn(3), torch.rand(3) + 0.5
        result = norm(x, w, mean, var, train).pow(3).sum()
        if twice:
            (gradient,) = torch.autograd.grad(result, x, create_graph=True)
            result = gradient.square().sum()
        if writes:
            write(mean, var)
        result.backward()
        return torch.stack([x.grad.sum(0), w.grad])

    return program


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("write", [by_another_forward, through_data])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_running_statistics_are_read_in_evaluation_only(norm, write, train, twice, contents):
    program = normalized(norm, write, train=train, twice=twice)
    right = bare(lambda: program(False))
    heard, gradient = hear(lambda: program(True), contents)
    assert torch.equal(gradient, bare(lambda: program(True)))
    assert torch.equal(gradient, right) == train
    assert bool(heard.clobbers) != train

    def preserved():
        with noclobber.preserve():
            return program(True)

    assert torch.equal(bare(preserved), right)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("draw", [torch._C._nn.rrelu_with_noise, torch._C._nn.rrelu_with_noise_])
def test_noise_is_read_where_it_was_drawn(draw, training):
    def program(writes):
        x, noise = torch.linspace(-2, 2, 8).requires_grad_(), torch.ones(8)
        y = draw(x * 1, noise, 0.2, 0.3, training)
        if writes:
            noise.data.fill_(7)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(lambda: program(True))
    assert torch.equal(gradient, bare(lambda: program(False))) != training
    assert bool(heard.clobbers) == training


@pytest.mark.parametrize("kind", ["Cudnn", "Miopen"])
def test_the_second_derivatives_on_accelerators_are_of_training_and_say_nothing_of_it(kind):
    """In evaluation their first derivative is that of the native one (derivatives.yaml of torch 2.13)."""
    node = getattr(torch._C._functions, f"{kind}BatchNormBackwardBackward0")
    assert hasattr(node, "_saved_running_mean")
    assert not any(hasattr(node, f"_saved_{flag}") for flag in ("training", "train", "update"))


@pytest.mark.parametrize("contents", [True, False])
def test_the_workspace_of_an_lstm_is_written_by_its_own_backward(contents):
    def program():
        lstm, x = torch.nn.LSTM(4, 3), torch.randn(5, 2, 4, requires_grad=True)
        result = lstm(x)[0].square().sum()
        assert "MkldnnRnnLayerBackward0" in {node.name() for node in graph.walk([result.grad_fn])}
        first = torch.autograd.grad(result, x, retain_graph=True)[0]
        return torch.stack([first, torch.autograd.grad(result, x)[0]])

    once, again = bare(program)
    assert torch.equal(once, again)
    heard, gradients = hear(program, contents)
    assert not heard.clobbers
    assert torch.equal(gradients[1], once)

    def preserved():
        with noclobber.preserve():
            return program()

    assert torch.equal(bare(preserved)[1], once)
