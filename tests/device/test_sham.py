"""The sham device is a device: it computes what the CPU does, nobody reads its memory, backward has its own thread."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noclobber.observe.torch_api.autograd.graph import walk
from tests.device import sham
from tests.fuzz.judge import run
from tests.fuzz.programs import random_program
from tests.fuzz.statements import ON_THE_CPU, moved

HERE = pytest.mark.parametrize("device", [sham.NAME])


@HERE
def test_its_tensors_are_plain_ones(device):
    x = torch.ones(2, 3, device=device)
    assert type(x) is torch.Tensor
    assert x.device == torch.device(device, 0)
    assert not x.is_cpu
    assert x.untyped_storage().device == x.device
    assert x._version == 0
    assert not x._is_view()


@HERE
def test_its_memory_can_only_be_read_by_its_operators(device):
    program = "from tests.device import sham; import ctypes, torch; x = torch.ones(3, device=sham.arrive()); "
    assert subprocess.run([sys.executable, "-c", program + "assert x.data_ptr()"]).returncode == 0
    assert subprocess.run([sys.executable, "-c", program + "ctypes.string_at(x.data_ptr(), 4)"]).returncode != 0


@HERE
def test_memory_goes_with_its_last_tensor(device):
    before = torch.ones(5)
    count = sys.getrefcount(before)
    made = before.to(device)
    view = made[1:]
    del made
    assert view.sum().item() == 4
    del view
    assert sys.getrefcount(before) == count


@HERE
def test_backward_runs_in_a_thread_of_the_engine(device):
    seen = []
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda gradient: seen.append(threading.current_thread()))
    y.sum().backward()
    assert seen[0] is not threading.main_thread()
    assert type(seen[0]).__name__ == "_DummyThread"


@HERE
@pytest.mark.parametrize("where", ["hook", "unpack", "function"])
def test_an_error_comes_out_of_that_thread_as_it_was_raised(where, device):
    class Own(Exception):
        pass

    def fail(*_):
        raise Own("here")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        backward = staticmethod(fail)

    x = torch.ones(3, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, fail if where == "unpack" else lambda t: t):
        y = Function.apply(x.exp()) if where == "function" else x.exp()
    if where == "hook":
        y.register_hook(fail)
    for _ in range(2):
        with pytest.raises(Own, match="here"):
            y.sum().backward(retain_graph=True)


@HERE
def test_it_draws_random_numbers_of_its_own(device):
    torch.manual_seed(1)
    here = torch.randn(4), torch.rand(3), F.dropout(torch.ones(50)).count_nonzero()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    there = torch.randn(4, device=device), torch.rand(3, device=device)
    zeros = F.dropout(torch.ones(50, device=device)).count_nonzero()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(there[0].cpu(), here[0])
    assert torch.equal(there[1].cpu(), here[1])
    assert zeros.item() == here[2].item()


@HERE
def test_the_cells_of_recurrent_nets_are_fused(device):
    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(0)
        near = kind(3, 4)
        far = kind(3, 4).to(device)
        far.load_state_dict(near.state_dict())
        x = torch.randn(5, 2, 3)
        one, other = near(x)[0], far(x.to(device))[0]
        names = {node.name() for node in walk([other.grad_fn])}
        assert any("ThnnFused" in name for name in names)
        torch.testing.assert_close(other.cpu(), one)
        one.square().sum().backward()
        other.square().sum().backward()
        for each, its in zip(near.parameters(), far.parameters(), strict=True):
            torch.testing.assert_close(its.grad.cpu(), each.grad)


@HERE
def test_random_programs_come_to_the_same(device):
    """But for what moving them changes: where hooks copy to the CPU, a copy is made."""
    for number in range(50):
        program = random_program(f"sham-{number}", (*ON_THE_CPU, "transfer", "saved hooks", "set", "inference"))
        here, there = run(program), run(moved(program, device))
        assert type(here.error) is type(there.error), f"{here.error!r} {there.error!r}\n{program}"
        for name, (shape, dtype, _, data) in _plain(here.values).items():
            its_shape, its_dtype, _, its = _plain(there.values)[name]
            assert (shape, dtype) == (its_shape, its_dtype), f"{name}\n{program}"
            one, other = torch.frombuffer(bytearray(data), dtype=dtype), torch.frombuffer(bytearray(its), dtype=dtype)
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12, equal_nan=True, msg=f"{name}\n{program}")


def _plain(values):
    return {name: value for name, value in values.items() if isinstance(value, tuple) and value[-1]}
