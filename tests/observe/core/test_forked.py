"""`torch.jit.fork`: what it runs saves and writes in a thread of C++, where no Python frame is above noclobber's."""

import sys

import pytest
import torch

from tests.observe.alike import differing, outcome_in

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@torch.jit.script
def _power(x: torch.Tensor):
    return x**2


@torch.jit.script
def _overwrite(x: torch.Tensor):
    y = x.exp()
    z = y * y
    y.add_(1)
    return z


@torch.jit.script
def _write(x: torch.Tensor):
    return x.add_(1)


@torch.jit.script
def _write_a_part(x: torch.Tensor):
    first, _ = torch.split(x, 2)
    return first.mul_(2)


@torch.jit.script
def _forked_power(x: torch.Tensor):
    return torch.jit._wait(torch.jit._fork(_power, x))


@torch.jit.script
def _forked_overwrite(x: torch.Tensor):
    return torch.jit._wait(torch.jit._fork(_overwrite, x))


@torch.jit.script
def _forked_write(x: torch.Tensor):
    return torch.jit._wait(torch.jit._fork(_write, x))


@torch.jit.script
def _forked_write_a_part(x: torch.Tensor):
    return torch.jit._wait(torch.jit._fork(_write_a_part, x))


def leaf():
    return torch.arange(1.0, 5.0, requires_grad=True)


def saved_in_a_fork():
    x = leaf()
    _forked_power(x).sum().backward()
    return x.grad.tolist()


def saved_in_a_fork_under_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        return saved_in_a_fork()


def written_in_a_fork():
    x = leaf()
    y = x * 2
    _forked_write(y)
    y.sum().backward()
    return x.grad.tolist(), y._version


def overwritten_in_a_fork():
    x = leaf()
    _forked_overwrite(x).sum().backward()
    return x.grad.tolist()


def overwritten_by_a_fork():
    x = leaf()
    y = x.exp()
    _forked_write(y)
    y.sum().backward()
    return x.grad.tolist()


def refused_in_a_fork():
    _forked_write(leaf())


def refused_in_a_fork_to_one_of_several_views():
    _forked_write_a_part(leaf() * 2)


@pytest.mark.parametrize(
    "program",
    [
        saved_in_a_fork,
        saved_in_a_fork_under_hooks,
        written_in_a_fork,
        refused_in_a_fork,
        refused_in_a_fork_to_one_of_several_views,
    ],
    ids=lambda program: program.__name__,
)
def test_what_a_fork_does_is_as_without_noclobber(program):
    assert differing(program) == {}


@pytest.mark.parametrize("program", [overwritten_in_a_fork, overwritten_by_a_fork], ids=lambda one: one.__name__)
def test_what_a_fork_overwrites_raises_as_without_noclobber(program):
    assert differing(program, ("install", "versions", "contents")) == {}


def test_what_a_fork_overwrites_is_kept():
    x = leaf()
    x.exp().sum().backward()
    assert outcome_in("preserve", overwritten_by_a_fork) == ("returned", x.grad.tolist())


def test_a_pack_hook_may_have_no_frame_above_it():
    """What the tests above rest on (torch 2.13)."""
    depths = []

    def pack(tensor):
        frame, depth = sys._getframe(), 0
        while (frame := frame.f_back) is not None:
            depth += 1
        depths.append(depth)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _forked_power(leaf())
    assert min(depths) == 0
