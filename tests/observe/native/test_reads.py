"""Python and the native part note the same of what a checkpointed region can read."""

import functools
import itertools
from collections import deque
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from noclobber.observe.core.seen import reads
from noclobber.observe.native.load import OFF, load
from tests.observe.native.conftest import missing

scale = 3


class Mode(Enum):
    """A mode."""

    FAST = 1


class Rows(list[int]):
    """A list whose length may not be asked."""

    def __len__(self) -> int:
        raise AssertionError("code of the program was called")


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("given", "missing")

    def __init__(self, given: object) -> None:
        self.given = given


class Net(nn.Module):
    """A module that holds one of everything."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None))
        self.again = self.inner
        self.position, self.mode, self.counts = 0, Mode.FAST, itertools.count(3)
        self.cache: dict[object, object] = {"k": torch.zeros(2), 1: [torch.ones(1), "x" * 300, b"y" * 300, "short"]}
        self.many, self.recent, self.rows = list(range(100)), deque([1, "a"]), Rows([1, 2])
        self.held = Slotted({"deep": [[[[[torch.zeros(1)]]]]]})
        self.namespace = SimpleNamespace(net=self, flag=True, kind=int)
        self.bound, self.partial = self.forward, functools.partial(self.forward, torch.ones(1), scale=2)

    def forward(self, x: torch.Tensor, *, scale: int = 1) -> torch.Tensor:
        return x * scale * self.position


def closure() -> Any:
    """Return a function that reads a module, a tensor and a number of its closure, and a global variable."""
    net, weight, factor = Net(), torch.ones(2, requires_grad=True), 0.5
    return lambda x, again=None: net(x) * weight * factor * scale


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("function", [Net(), Net().forward, closure(), functools.partial(closure(), 1), len])
def test_the_same_is_read(monkeypatch: pytest.MonkeyPatch, function: Any, states: bool) -> None:
    if why := missing():
        pytest.skip(why)
    monkeypatch.setenv(OFF, "0")
    native = load()
    args, kwargs, found = [torch.ones(1), Net, 3, [1]], {"named": {"a": 1}}, list[reads.Reads]()
    for walk in (reads.walk, functools.partial(native.walk, reads.KINDS)):
        monkeypatch.setattr(reads, "_walk", walk)
        found.append(reads.read_by(function, args, kwargs, states=states))
    python, fast = found
    assert list(fast.values) == list(python.values)
    assert list(map(id, fast.tensors)) == list(map(id, python.tensors))
