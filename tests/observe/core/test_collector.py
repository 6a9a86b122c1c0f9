"""The garbage collector and the saves of a large graph: it passes over them, and they are freed without it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

import noclobber
from noclobber.model.seen.live_saves import FEWEST_BEFORE_SWEEP
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.collector import MANY, leave_out


@pytest.fixture(params=[False, True], ids=["versions", "contents"])
def in_python(request: pytest.FixtureRequest) -> Iterator[None]:
    gc.collect()
    with noclobber.watch(contents=request.param):
        if CONTEXT.native is not None:
            pytest.skip("the native part makes no objects of Python for these saves")
        yield


def chain(x: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = x.sin()
    return x


def test_what_is_left_out_is_freed_with_its_last_reference() -> None:
    freed: list[int] = []

    class Holder:
        def __init__(self, held: object) -> None:
            self.held = held

        def __del__(self) -> None:
            freed.append(1)

    one = Holder([])
    assert gc.is_tracked(one)
    leave_out(one)
    leave_out(one)
    assert not gc.is_tracked(one)
    gc.collect()
    assert one.held == []
    assert not freed
    del one
    assert freed == [1]


@pytest.mark.usefixtures("in_python")
def test_of_many_writes_the_collector_sees_few() -> None:
    CONTEXT.memory.forget()
    x = torch.ones(3, requires_grad=True) * 2
    for _ in range(2 * MANY):
        x.mul_(1)
    logged = CONTEXT.memory.recent
    assert len(logged) == 2 * MANY
    assert sum(map(gc.is_tracked, logged)) == MANY


@pytest.mark.usefixtures("in_python")
def test_of_a_large_graph_the_collector_sees_few_saves() -> None:
    before, x = set(CONTEXT.live.all()), torch.randn(3, requires_grad=True)
    y = chain(x, 3 * FEWEST_BEFORE_SWEEP)
    handles = set(CONTEXT.live.all()) - before
    assert len(handles) >= 3 * FEWEST_BEFORE_SWEEP
    assert sum(map(gc.is_tracked, handles)) <= FEWEST_BEFORE_SWEEP + 1
    y.sum().backward()
    expected = torch.autograd.grad(chain(x, 3 * FEWEST_BEFORE_SWEEP).sum(), x)
    assert torch.equal(x.grad, expected[0])  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_python")
@pytest.mark.parametrize("end", [lambda y: y.sum().backward(), lambda y: None], ids=["backward", "dropped"])
def test_a_large_graph_is_freed_without_the_collector(end: Callable[[torch.Tensor], None]) -> None:
    enabled, before = gc.isenabled(), set(CONTEXT.live.all())
    gc.disable()
    try:
        x = torch.randn(3, requires_grad=True)
        y = chain(x, 3 * FEWEST_BEFORE_SWEEP)
        end(y)
        del y
        alive = CONTEXT.live.all()
    finally:
        if enabled:
            gc.enable()
    assert set(alive) <= before  # of other tests


@pytest.mark.usefixtures("in_python")
def test_a_write_to_a_save_that_the_collector_does_not_see_is_found() -> None:
    with noclobber.watch() as watching:
        x = torch.randn(3, requires_grad=True)
        y = chain(x, 3 * FEWEST_BEFORE_SWEEP)
        exponential = y.exp()
        exponential.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            exponential.sum().backward()
    assert [one.code for one in watching.findings] == ["NC101"]
