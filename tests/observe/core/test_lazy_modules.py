"""Lazy modules: their parameters have no shape and refuse what is asked of them, until forward has made them."""

import copy

import pytest
import torch
from torch import nn

import noclobber
from tests.observe.alike import differing


def lazy_linear():
    return nn.LazyLinear(3)(torch.ones(2, 4)).tolist()


def lazy_net():
    net = nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.ReLU(inplace=True))
    net(torch.ones(2, 4, 8, 8)).sum().backward()
    return [p.grad.tolist() for p in net.parameters()]


def lazy_state_into_a_lazy_module():
    one, other = nn.LazyLinear(3), nn.LazyLinear(3)
    other.load_state_dict(one.state_dict())
    return str(other)


def state_into_a_lazy_module():
    other = nn.LazyLinear(3)
    other.load_state_dict(nn.Linear(4, 3).state_dict())
    return other.weight.tolist()


def lazy_state_into_a_module():
    nn.Linear(4, 3).load_state_dict(nn.LazyLinear(3).state_dict())


def data_of_a_lazy_parameter():
    net = nn.LazyLinear(3)
    net.weight.data  # noqa: B018
    return copy.deepcopy(net.double()).weight.dtype


def data_of_a_lazy_buffer():
    buffer = nn.UninitializedBuffer()
    buffer.data  # noqa: B018
    buffer.materialize((2, 2))
    return tuple(buffer.shape)


def set_data_of_a_lazy_parameter():
    parameter = nn.UninitializedParameter()
    parameter.data = torch.ones(3)
    return type(parameter).__name__


def write_to_a_lazy_parameter():
    nn.UninitializedParameter().set_(torch.ones(3).untyped_storage())


def multiply_a_lazy_parameter():
    nn.UninitializedParameter().mul_(2)


@pytest.mark.parametrize(
    "program",
    [
        lazy_linear,
        lazy_net,
        lazy_state_into_a_lazy_module,
        state_into_a_lazy_module,
        lazy_state_into_a_module,
        data_of_a_lazy_parameter,
        data_of_a_lazy_buffer,
        set_data_of_a_lazy_parameter,
        write_to_a_lazy_parameter,
        multiply_a_lazy_parameter,
    ],
    ids=lambda program: program.__name__,
)
def test_a_lazy_module_is_as_without_noclobber(program):
    assert differing(program) == {}


def finding_beside_a_lazy_module():
    net, parameter = nn.LazyLinear(3), nn.UninitializedParameter()
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()
    return net, parameter


@pytest.mark.parametrize("on_write", ["record", "raise"])
def test_names_are_looked_up_among_lazy_parameters(on_write):
    with pytest.raises(noclobber.ClobberError), noclobber.watch(on_write=on_write) as seen:
        finding_beside_a_lazy_module()
    assert seen.report.findings[0].tensor.name == "y"
