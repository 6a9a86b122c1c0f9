"""The program's own `__torch_function__`, of a subclass or of a mode, is called as without noclobber."""

from contextlib import nullcontext

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.observe.torch_api import before_2_12
from tests.observe.kinds import Kept

BLOCKS = {
    "versions": lambda: noclobber.watch(contents=False),
    "contents": lambda: noclobber.watch(contents=True),
    "preserve": noclobber.preserve,
}
called: list[str] = []


class Hearing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        called.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Heard(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        called.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def operators(x):
    return x.sin().mul_(2)


PROGRAMS = {
    "operators": operators,
    "function": Kept.apply,
    "region": lambda x: checkpoint(operators, x, use_reentrant=False),
    "reentrant region": lambda x: checkpoint(operators, x, use_reentrant=True),
}


def calls_of(program, around, kind):
    called.clear()
    with around():
        x = torch.arange(5.0)
        x = (x.as_subclass(Heard) if kind == "subclass" else x).requires_grad_()
        with Hearing() if kind == "mode" else nullcontext():
            program(x).sum().backward()
    return list(called)


@pytest.mark.parametrize("kind", ["subclass", "mode"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_called_as_without_noclobber(program, block, kind):
    if before_2_12.is_used() and (program, kind) == ("region", "mode"):
        pytest.skip("torch 2.10 and 2.11 save the arguments of a region by a Function, which asks in the mode")
    bare = calls_of(PROGRAMS[program], nullcontext, kind)
    assert calls_of(PROGRAMS[program], BLOCKS[block], kind) == bare
