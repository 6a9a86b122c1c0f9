"""What hints are made of: who could write in place, and what that would bring, against the allocator."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import noclobber
from noclobber.model.seen.hints import InPlaceCall, Opportunity
from noclobber.observe.memory.allocations import Allocations
from noclobber.observe.memory.measured_peak import MeasuredPeak
from noclobber.session.session import Session

from .test_saved_bytes import model_of

N = 1000
KB = 4 * N
"""The bytes of a tensor of N numbers."""


def followed(program: Callable[[], object]) -> Allocations:
    session = Session(hints=True, contents=True)
    session.start()
    try:
        program()
    finally:
        session.stop()
    assert session.failures == ()
    assert session.allocations is not None
    return session.allocations


def opportunities(program: Callable[[], object]) -> list[tuple[str, int]]:
    """The operators that could write in place, and how far the peak falls by each alone."""
    return [(one.op, one.alone) for one in followed(program).hints() if isinstance(one, Opportunity)]


def calls(program: Callable[[], object]) -> list[InPlaceCall]:
    return [one for one in followed(program).hints() if isinstance(one, InPlaceCall)]


def leaf() -> torch.Tensor:
    return torch.full((N,), 0.5, requires_grad=True)


def measured(program: Callable[[], object]) -> int:
    gc.collect()
    peak = MeasuredPeak()
    peak.begin()
    try:
        program()
    finally:
        found = peak.end()
    return found


@pytest.mark.parametrize(
    ("build", "sizes", "within"), [("gpt", (64, 4, 65, 32, 4), 0), ("resnet50", (16, 64, 4, 10), 0.03)]
)
def test_the_peak_is_that_of_the_allocator(build: str, sizes: tuple[int, ...], within: float) -> None:
    """A convolution takes memory for itself, which only the allocator knows of."""
    model, forward = model_of(build, *sizes)
    forward().backward()
    model.zero_grad()
    right = measured(lambda: forward().backward())
    model.zero_grad()
    assert max(followed(lambda: forward().backward()).live) == pytest.approx(right, rel=within, abs=0)


@pytest.mark.parametrize(
    ("out_of_place", "in_place"),
    [
        (lambda h: h * 3, lambda h: h.mul_(3)),
        (lambda h: h + h.new_ones(N), lambda h: h.add_(h.new_ones(N))),
        (F.relu, lambda h: F.relu(h, inplace=True)),
        (nn.ReLU(), nn.ReLU(inplace=True)),
        (torch.exp, lambda h: h.exp_()),
        (lambda h: -h, lambda h: h.neg_()),
    ],
)
def test_the_measured_peak_falls_as_announced(out_of_place: Callable[..., Any], in_place: Callable[..., Any]) -> None:
    def program(step: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            h = leaf() * 2
            y = step(h)
            torch.empty(9 * N)
            del h
            y.sum().backward()

        return run

    [(_, fall)] = opportunities(program(out_of_place))
    assert fall == KB == measured(program(out_of_place)) - measured(program(in_place))


def chain(step: Callable[[torch.Tensor], object]) -> Callable[[], object]:
    """A program whose only candidate is `h * 3`; `step` then does something with `h`."""

    def run() -> object:
        h = leaf() + 1
        y = h * 3
        more = torch.empty(4 * N)
        return step(h), y.sum().backward(), more

    return run


def test_an_input_that_nothing_needs() -> None:
    assert opportunities(chain(lambda h: None)) == [("aten::mul", KB)]


@pytest.mark.parametrize(
    "step",
    [
        lambda h: h.sum(),
        lambda h: h.view(10, -1),
        lambda h: h.exp().sum().backward(),
        lambda h: h.detach(),
        lambda h: h.detach().numpy(),
    ],
)
def test_an_input_that_is_needed_later(step: Callable[[torch.Tensor], object]) -> None:
    assert opportunities(chain(step)) == []


def saved_before() -> None:
    h = leaf().exp()
    (h * 3).sum().backward()


def kept_by_itself() -> None:
    h = leaf() + 1
    (h**2).sum().backward()


def a_leaf() -> None:
    (leaf() * 3).sum().backward()


def one_of_several_views() -> None:
    h, _ = (leaf() + 1).view(2, -1).unbind()
    (h * 3).sum().backward()


def another_dtype() -> None:
    h = torch.ones(N, dtype=torch.int32) + 1
    (h * 0.5).sum()


def a_broadcast() -> None:
    h = leaf() + 1
    (h * torch.ones(2, N)).sum().backward()


def an_operand_twice() -> None:
    h = leaf() + 1
    (h + h).sum().backward()


def now_and_then_needed() -> None:
    for number in range(3):
        h = leaf() + 1
        y = h * 3
        y.sum().backward()
        if number == 1:
            h.sum()


def inside_a_library() -> None:
    h = leaf() + 1
    F.normalize(h, dim=0).sum().backward()


@pytest.mark.parametrize(
    "program",
    [
        saved_before,
        kept_by_itself,
        a_leaf,
        one_of_several_views,
        another_dtype,
        a_broadcast,
        an_operand_twice,
        now_and_then_needed,
        inside_a_library,
    ],
)
def test_what_could_not_write_in_place(program: Callable[[], object]) -> None:
    assert opportunities(program) == []


def test_a_tensor_in_memory_of_numpy_is_left_alone() -> None:
    def program() -> object:
        h = leaf().detach() + 1
        array = h.numpy()
        y = h * 3
        return array.sum(), y.sum()

    assert opportunities(program) == []


@pytest.mark.parametrize("step", [F.silu, F.mish, F.hardswish])
def test_a_clone_that_autograd_keeps(step: Callable[..., Any]) -> None:
    def program() -> None:
        h = leaf() + 1
        step(h, inplace=True).sum().backward()

    assert [(one.copied, one.times) for one in calls(program)] == [(KB, 1)]


@pytest.mark.parametrize("step", [torch.relu_, torch.sigmoid_, torch.exp_, lambda h: h.mul_(3)])
def test_a_call_that_keeps_no_clone(step: Callable[..., Any]) -> None:
    assert [one.copied for one in calls(lambda: step(leaf() + 1).sum().backward())] == [0]


def test_what_out_of_place_would_cost() -> None:
    def program() -> None:
        h = leaf() + 1
        h += 1
        h.sum()

    [found] = calls(program)
    assert (found.rise, found.saved) == (KB - 4, False)  # the sum, which comes after it, has 4 bytes
    assert [one.rise for one in calls(lambda: (program(), torch.empty(9 * N)))] == [0]


@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_a_write_into_a_save() -> None:
    def program() -> None:
        h = leaf().exp()
        h.mul_(2)

    assert [one.saved for one in calls(program)] == [True]


def test_no_step_and_no_backward_is_looked_at() -> None:
    def program() -> None:
        w = leaf()
        optimizer = torch.optim.Adam([w], foreach=False)
        for _ in range(2):
            w.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            w.clone().add_(1)

    assert followed(program).hints() == []


def test_following_changes_no_value_and_leaves_nothing() -> None:
    def program() -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
        return list(net.parameters())

    right = program()
    with noclobber.watch(hints=True, contents=True) as seen:
        found = program()
    assert all(torch.equal(one, other) for one, other in zip(right, found, strict=True))
    assert seen.report.coverage.lost == ()
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0  # type: ignore[no-untyped-call]


def test_nothing_lives_longer() -> None:
    with noclobber.watch(hints=True):
        h = leaf() * 2
        y = h.relu()
        y.sum().backward()
        nodes = [weakref.ref(h), weakref.ref(y.untyped_storage())]
        gc.collect()
        gc.disable()
        try:
            del h, y
            assert [node() for node in nodes] == [None, None]
        finally:
            gc.enable()


def test_pytorch_notices_a_write_of_several_tensors() -> None:
    """A mode makes `_foreach_mul_` move no version (torch 2.13)."""
    with noclobber.watch(hints=True):
        h = leaf() + 1
        y = h.exp()
        torch._foreach_mul_([y], 2)  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_too_many_events_end_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noclobber.observe.memory.allocations.MOST_EVENTS", 10)
    found = followed(lambda: [leaf() + 1 for _ in range(100)])
    assert found.full
    assert len(found.live) < 15


def test_what_is_compiled_runs_uncompiled_and_is_told() -> None:
    """torch compiles nothing under a dispatch mode. An optimizer's step, which is never compiled, is not told."""
    weight = leaf()
    optimizer = torch.optim.Adam([weight])

    def steps() -> None:
        weight.exp().sum().backward()
        optimizer.step()

    assert followed(steps).unseen() == []
    compiled = torch.compile(lambda x: (x + 1).sum(), backend="eager")
    assert followed(lambda: compiled(weight)).unseen() == [
        "compiled functions in their compiled form: here they run uncompiled"
    ]
