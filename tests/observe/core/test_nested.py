"""Nested tensors, which have neither sizes nor strides: strided ones, and the jagged ones that are a subclass."""

import warnings

import pytest
import torch
from torch import nn

import noclobber
from tests.observe.alike import MODES, differing

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


def pair(*, requires_grad=False, layout=torch.strided):
    return torch.nested.nested_tensor(
        [torch.ones(2), torch.full((13,), 2.0)], requires_grad=requires_grad, layout=layout
    )


def numbers(nested):
    return [one.tolist() for one in nested.detach().unbind()]


def write():
    x = pair()
    x.mul_(2)
    return numbers(x)


def write_beside_a_save():
    y = torch.ones(3, requires_grad=True).exp()
    x = pair()
    x.mul_(2)
    return numbers(x), y.tolist()


def write_in_the_graph():
    x = pair(requires_grad=True)
    y = x.clone()
    y.mul_(2)
    y.data.add_(1)
    y.detach().fill_(3)
    y.backward(pair())
    return numbers(y), numbers(x.grad)


def write_without_grad():
    x = pair(requires_grad=True)
    y = x.clone()
    with torch.no_grad():
        y.mul_(2)
    y.backward(pair())
    return numbers(x.grad)


def write_to_a_transposed_one():
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).transpose(1, 2)
    x.mul_(2)
    return numbers(x)


def write_to_a_part():
    x = pair(requires_grad=True)
    y = x.clone()
    y.unbind()[0].mul_(2)


def relu_in_place():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    net(torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)])).to_padded_tensor(0.0).sum().backward()
    return [p.grad.tolist() for p in net.parameters()]


def transformer_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 1).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        return net(torch.randn(2, 3, 8), src_key_padding_mask=padding).tolist()


def refused():
    leaf = pair(requires_grad=True)
    leaf.mul_(2)


def without_a_kernel():
    pair().sqrt_()


def stale(layout=torch.strided, *, write=True):
    x = pair(requires_grad=True, layout=layout)
    y = x.clone()
    result = y * y
    if write:
        y.add_(y)
    result.backward(torch.ones_like(result))
    return numbers(x.grad)


def stale_of_a_transposed_one():
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], requires_grad=True)
    y = x.transpose(1, 2).clone()
    result = y * y
    y.mul_(2)
    result.backward(result.detach())


def stale_jagged():
    return stale(torch.jagged)


WATCHING = ("install", "versions", "contents")


@pytest.mark.parametrize(
    "program",
    [
        write,
        write_beside_a_save,
        write_in_the_graph,
        write_without_grad,
        write_to_a_transposed_one,
        write_to_a_part,
        relu_in_place,
        transformer_fast_path,
        refused,
        without_a_kernel,
    ],
    ids=lambda program: program.__name__,
)
def test_a_nested_tensor_is_as_without_noclobber(program):
    assert differing(program) == {}


@pytest.mark.parametrize(
    "program", [stale, stale_of_a_transposed_one, stale_jagged], ids=lambda program: program.__name__
)
def test_a_stale_nested_save_raises_what_pytorch_raises(program):
    assert differing(program, WATCHING) == {}


def test_the_whole_message_about_a_stale_nested_save():
    with pytest.raises(RuntimeError) as bare:
        stale()
    with pytest.raises(noclobber.ClobberError) as watched, noclobber.watch():
        stale()
    assert str(watched.value) == str(bare.value)
    assert "13" in str(bare.value)


def test_a_stale_nested_save_is_found():
    with pytest.raises(noclobber.ClobberError), noclobber.watch() as seen:
        stale()
    (finding,) = seen.report.findings
    assert finding.code == "NC101"
    assert finding.tensor.nbytes == 15 * 4


def test_bytes_of_a_nested_save_are_compared():
    with warnings.catch_warnings(), noclobber.watch(contents=True) as seen:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        x = pair(requires_grad=True)
        y = x.clone()
        result = y * y
        y.data.unbind()[1].mul_(2)
        result.backward(pair())
    assert [finding.code for finding in seen.report.findings] == ["NC201"]


def test_what_a_nested_save_needs_is_kept():
    right = stale(write=False)
    with noclobber.preserve() as kept:
        assert stale() == right
    assert sum(one.bytes for one in kept.kept) >= 15 * 4


@pytest.mark.parametrize("mode", MODES)
def test_a_nested_tensor_is_named_in_a_refusal(mode):
    with pytest.raises(RuntimeError) as error, MODES[mode]():
        refused()
    assert "`leaf`" in error.value.__notes__[0]
