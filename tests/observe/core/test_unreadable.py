"""Tensors whose numbers can't be read, or not as those of others: writes to them that autograd does not see."""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import noclobber
from tests.observe.alike import differing


def meta():
    with torch.device("meta"):
        x = torch.ones(3, requires_grad=True)
        y = x.clone()
        y.data.mul_(2)
        z = y.exp()
        with torch.no_grad():
            z.mul_(2)
    z.data.clamp_(0, 1)
    return y.grad_fn.name(), tuple(z.shape)


def meta_training():
    with torch.device("meta"):
        net, x = nn.Linear(2, 2), torch.ones(1, 2)
    net.weight.data.normal_(0, 0.02)
    h = net(x).relu()
    h.data = torch.ones(1, 2, device="meta")
    h.data.clamp_(0, 1)
    h.sum().backward()
    net.weight.data.clamp_(-1, 1)
    return tuple(net.weight.grad.shape)


def fake():
    with FakeTensorMode():
        x = torch.ones(3, requires_grad=True)
        y = x.clone()
        y.data.mul_(2)
        with torch.no_grad():
            y.mul_(2)
        y.sum().backward()
        return tuple(x.grad.shape)


def traced(mode):
    """The calls, and the guards: each size that was asked for as a number adds one.

    A save adds a `detach`, unused, which torch 2.15 traces as an `alias`.
    """

    def function(x):
        y = x.exp()
        y.data.mul_(2)
        z = y[1:].sin()
        z[:, 0] += 1
        return (z * y[1:]).sum()

    graph = make_fx(function, tracing_mode=mode)(torch.ones(4, 3, requires_grad=True))
    added = ("aten.detach.default", "aten.alias.default")
    calls = [str(node.target) for node in graph.graph.nodes if node.users or str(node.target) not in added]
    return calls, [str(one.expr) for one in graph.shape_env.guards] if mode == "symbolic" else []


def subclass():
    x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    y = x * 2
    y.data.mul_(3)
    with torch.no_grad():
        y.mul_(2)
    y.sum().backward()
    return x.grad.a.tolist()


def vmapped():
    def function(x):
        y = x.exp()
        y.data.mul_(2)
        return y

    return torch.func.vmap(function)(torch.ones(2, 3, requires_grad=True)).tolist()


def per_sample_gradients():
    def loss(weight, x):
        y = (weight * x).clone()
        y.data.mul_(2)
        return (y**2).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(torch.ones(3), torch.arange(6.0).view(2, 3)).tolist()


def batched_gradient():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.data.mul_(2)
    (jacobian,) = torch.autograd.grad(y * 3, x, torch.eye(3), is_grads_batched=True)
    return jacobian.tolist()


def embedding(kind, rows):
    net, source = kind(4, 2, sparse=True), torch.randn(4, 2, requires_grad=True)
    net.weight.data.copy_(source * 2)
    net(torch.tensor(rows)).sum().backward()
    return net.weight.grad.to_dense().tolist()


def sparse_gradient():
    return embedding(nn.Embedding, [0, 2, 2])


def sparse_gradient_of_bags():
    return embedding(nn.EmbeddingBag, [[0, 2]])


def sparse_gradient_inside(row=0):
    """The table is computed, one of its rows is written over unseen, and `row` is looked up."""
    weight = torch.ones(4, 2, requires_grad=True)
    table = weight * 2
    table.data.mul_(torch.tensor([[1.0], [5.0], [1.0], [1.0]]))
    nn.functional.embedding(torch.tensor([row]), table, sparse=True).sum().backward()
    return weight.grad.to_dense().tolist()


def mkldnn():
    x = torch.ones(3, 3, requires_grad=True)
    y = x * 2
    y.data.mul_(3)
    y.to_mkldnn().to_dense().sum().backward()
    return x.grad.tolist()


def compressed():
    x = torch.eye(3).to_sparse_csr().requires_grad_()
    y = x * 2
    y.data.mul_(3)
    y.values().sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        meta,
        meta_training,
        fake,
        subclass,
        vmapped,
        per_sample_gradients,
        batched_gradient,
        sparse_gradient,
        sparse_gradient_of_bags,
        sparse_gradient_inside,
        mkldnn,
        compressed,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_a_write_that_autograd_does_not_see_is_as_without_noclobber(program):
    assert differing(program) == {}


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_program_gives_the_same_graph(mode):
    assert differing(lambda: traced(mode)) == {}


def codes(program, *args):
    with warnings.catch_warnings(), noclobber.watch() as seen:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        program(*args)
    return [finding.code for finding in seen.report.findings]


def test_a_sparse_gradient_that_reaches_what_was_written_unseen_is_told():
    assert codes(sparse_gradient) == ["NC208"]
    assert codes(sparse_gradient_inside, 1) == ["NC208"]


def test_a_sparse_gradient_that_passes_it_by_is_not():
    assert codes(sparse_gradient_inside, 0) == []


def test_a_write_to_what_has_no_numbers_is_named_in_the_coverage():
    with noclobber.watch() as seen:
        subclass()
    assert any("that show no numbers" in one for one in seen.report.coverage.unseen)
