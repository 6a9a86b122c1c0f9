"""Bytes are compared where they lie: each change is told, and the program waits for the device once a backward."""

import pytest
import torch
from torch import nn

import noclobber
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness import digests
from noclobber.observe.witness.digests import OnDevice, all_known, differs, fingerprint, same
from tests.device import sham
from tests.device.places import MODES
from tests.observe.core.test_contents import LAYOUTS, TYPES, WIDE

NARROW = [one for one in TYPES if one not in (torch.float64, torch.complex64)]
"""What every device has."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_tells_a_changed_element(layout, dtype, device):
    tensor = LAYOUTS[layout]((WIDE % 2).to(dtype).to(device))
    before = fingerprint(tensor)
    assert before is not None
    assert isinstance(before, OnDevice) == (device != "cpu")
    assert same(fingerprint(tensor.detach()), before)
    index = (0,) * tensor.dim()
    with torch.no_grad():
        tensor[index] = 1 - abs(tensor[index].item())
    assert not same(fingerprint(tensor), before)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1, 1)])
def test_every_shape_has_a_fingerprint(shape, device):
    tensor = torch.ones(shape, device=device)
    before = fingerprint(tensor)
    assert before is not None
    tensor.add_(1)
    assert same(fingerprint(tensor), before) != bool(tensor.numel())


def test_a_dimension_of_one_element_may_have_any_stride(device):
    tensor = torch.ones(4, 1, device=device).expand(4, 1).as_strided((3, 1), (0, 0))
    assert fingerprint(tensor) is not None
    assert fingerprint(torch.arange(6.0, device=device)[::2]) is not None


@pytest.mark.parametrize("mark", ["conj", "neg"])
def test_marked_tensors_are_read_as_they_are_stored(mark, device):
    if device == "mps":
        pytest.skip("MPS has no complex numbers to speak of")
    stored = torch.randn(4, dtype=torch.complex64, device=device)
    marked = stored.conj() if mark == "conj" else stored.conj().imag
    assert marked.is_conj() or marked.is_neg()
    before = fingerprint(marked)
    assert before is not None
    stored[2] += 1j
    assert not same(fingerprint(marked), before)


def test_an_expanded_tensor_is_not_copied(device):
    huge = torch.ones(1, device=device).expand(2**40)
    assert same(fingerprint(huge), fingerprint(torch.ones(1, device=device).expand(1)))


def test_several_are_compared_at_once(device):
    tensor = torch.ones(3, device=device)
    one, other = fingerprint(tensor), fingerprint(tensor * 2)
    asked = [differs(one, other), differs(one, one), differs(one, None), differs(None, None), differs(1, 2)]
    sham.waited.clear()
    assert all_known(asked) == [True, False, True, False, True]
    assert len(sham.waited) <= (device == sham.NAME)


def test_fingerprints_are_out_of_sight_of_the_program(device):
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    x = torch.ones(3, device=device, requires_grad=True)

    def program():
        seen.clear()
        x.grad = None
        with Mode():
            y = (x.exp() * x).sum()
            y.backward()
        return list(seen)

    bare = program()
    with noclobber.watch(contents=True):
        watched = [one for one in program() if one is not torch.ops.aten.detach.default]
    assert watched == [one for one in bare if one is not torch.ops.aten.detach.default]


@pytest.mark.parametrize("mode", ["contents", "beside an extension"])
def test_a_backward_waits_once_where_extensions_may_write_and_else_never(mode, device):
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(6))).to(device)
    x = torch.randn(2, 4).to(device)
    with MODES[mode]() as seen:
        for _ in range(2):
            loss = net(x).sum()
            sham.waited.clear()
            loss.backward()
            assert len(sham.waited) == (device == sham.NAME and mode != "contents")
    assert seen.findings == ()


def test_what_waits_to_be_compared_holds_no_memory(device):
    """The saves that a backward gives back as it goes are given back under noclobber too."""
    kept = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            kept.append([reference.expired() for reference in references])
            return gradient

    with noclobber.watch(contents=True):
        x = Look.apply(torch.ones(3, device=device, requires_grad=True))
        references, h = [], x
        for _ in range(4):
            h = h.sin()
            references.append(storages.storage_ref(h))
            h = h * 1
        h.sum().backward()
    assert kept == [[True] * 4]


def test_nothing_can_be_read_while_a_graph_of_the_device_is_captured(monkeypatch, device):
    x = torch.ones(3, device=device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert (fingerprint(x) is None) == (device == "cuda")


def test_no_two_weights_are_near(device):
    weights = digests._weights(torch.device(device)).cpu().sort().values
    assert weights.min() < -(2**62)
    assert weights.max() > 2**62
    assert bool((weights.diff() != 0).all())


def test_a_fingerprint_takes_few_operators(device):
    """Two for the bytes, three for the numbers. The device is asked for each, and small steps wait for little else."""
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    tensor = torch.ones(32, 64, device=device)
    with Mode():
        digests.weighted(tensor)
    assert sum(not one.is_view for one in seen) == 5
