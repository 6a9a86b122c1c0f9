"""The ledger: its sum is what the allocator has handed out, and counting changes nothing."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import noclobber
from noclobber.model.plain import built
from noclobber.model.reports.ledger import Entry, Ledger, ledger_out


def workloads() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "workloads.py"
    spec = importlib.util.spec_from_file_location("workloads", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["workloads"] = importlib.util.module_from_spec(spec)  # which its dataclasses ask for
    spec.loader.exec_module(module)
    return module


def model_of(build: str, *sizes: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The model of a benchmark, and its loss."""
    found: list[Any] = []
    module = workloads()
    vars(module)["training_step"] = lambda model, loss: found.append((model, loss))
    getattr(module, build)(*sizes)
    return found[0]


def of_forward(forward: Callable[[], torch.Tensor]) -> tuple[Ledger, int]:
    """The ledger of a training step, and the bytes that forward took from the allocator and did not give back."""
    with noclobber.watch(ledger=True) as seen:
        with record_function("begin"):
            pass
        loss = forward()
        with record_function("end"):
            pass
        loss.backward()
    return seen.ledger(), loss.untyped_storage().nbytes()


@pytest.mark.parametrize(("build", "sizes"), [("gpt", (64, 4, 65, 32, 4)), ("resnet50", (16, 64, 4, 10))])
def test_the_sum_is_what_the_allocator_says(build: str, sizes: tuple[int, ...]) -> None:
    gc.collect()  # nothing of another test is freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model, forward = model_of(build, *sizes)
        forward().backward()
        gc.collect()
        ledger, loss = of_forward(forward)
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    begin, end = (next(one.start_ns() for one in events if one.name() == name) for name in ("begin", "end"))
    alive = sum(one.nbytes() for one in events if one.name() == "[memory]" and begin < one.start_ns() < end)
    cells = [one.cell_contents for one in forward.__closure__ or ()]
    before = [one for one in cells if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in before}
    assert ledger.bytes - sum(storages.values()) + loss == alive
    assert ledger.bytes > 3_000_000
    saved = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.parameters()}
    assert 0 < ledger.parameters <= sum(saved.values())
    assert ledger.buffers == sum(one.nbytes for one in model.buffers() if one.dim())


def test_lines_modules_and_operators() -> None:
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU())
    x = torch.ones(4, 10)
    with noclobber.watch(ledger=True) as seen:
        for _ in range(3):
            loss = net(x).exp().sum()
            loss.backward()
    found = {(one.module, one.op, one.bytes) for one in seen.ledger().entries if not one.lives_anyway}
    assert found == {("Sequential.0", "linear (addmm)", 160), ("Sequential.1", "relu", 320), ("", "exp", 320)}
    assert {Path(one.path).name for one in seen.ledger().entries} == {"test_saved_bytes.py"}
    assert all("net(x).exp()" in one.source for one in seen.ledger().entries)
    assert seen.ledger().bytes == 800


def test_a_storage_counts_once_and_a_parameter_apart() -> None:
    x = torch.ones(100, requires_grad=True)
    with noclobber.watch(ledger=True) as seen:
        y = x * 2
        loss = (y * y).sum() + (y[:50] * y[50:]).sum() + (x * y).sum()
        loss.backward()
    assert seen.ledger().bytes == 400
    assert seen.ledger().parameters == 400


def test_the_peak_is_what_was_alive_at_once() -> None:
    x = torch.ones(100, requires_grad=True)
    with noclobber.watch(ledger=True) as seen:
        x.exp().sum().backward()
        loss = x.exp().exp().sum()
        loss.backward()
        x.exp().sum().backward()
    assert seen.ledger().bytes == 800
    assert seen.ledger().backwards == 1


def test_a_forward_without_a_backward_counts_too() -> None:
    x = torch.ones(100, requires_grad=True)
    with noclobber.watch(ledger=True) as seen:
        y = x.exp()
    assert seen.ledger().bytes == y.untyped_storage().nbytes()
    assert [one.op for one in seen.ledger().entries] == [""]


def test_counting_holds_no_module_and_no_tensor() -> None:
    with noclobber.watch(ledger=True) as seen:
        net = nn.Linear(10, 10)
        x = torch.ones(4, 10)
        net(x).exp().sum().backward()
        gone = weakref.ref(net), weakref.ref(x)
        del net, x
        assert [one() for one in gone] == [None, None]
    assert seen.ledger().bytes > 0


def test_nested_blocks_count_for_themselves() -> None:
    x = torch.ones(100, requires_grad=True)
    with noclobber.watch(ledger=True) as outer:
        x.exp().exp().sum().backward()
        with noclobber.watch(ledger=True) as inner:
            x.exp().sum().backward()
        x.exp().sum().backward()
    assert (outer.ledger().bytes, inner.ledger().bytes) == (800, 400)


def test_a_block_in_a_block_that_does_not_count() -> None:
    x = torch.ones(100, requires_grad=True)
    with noclobber.watch(), noclobber.watch(ledger=True) as seen:
        x.exp().sum().backward()
    assert seen.ledger().bytes == 400


def test_a_block_that_counts_nothing_says_so() -> None:
    with noclobber.watch() as seen:
        pass
    with pytest.raises(ValueError, match="ledger=True"):
        seen.ledger()


def test_a_clobber_is_found_as_ever() -> None:
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch(ledger=True) as seen:
        y = x.exp()
        y += 1
        with pytest.raises(noclobber.ClobberError):
            y.sum().backward()
    assert [one.code for one in seen.findings] == ["NC101"]


def test_it_can_be_written_and_read_back() -> None:
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch(ledger=True) as seen:
        x.exp().sum().backward()
    assert ledger_out(built(Ledger, ledger_out(seen.ledger()))) == ledger_out(seen.ledger())


def test_a_report_without_the_word_buffer_can_be_read() -> None:
    data = ledger_out(Ledger((Entry("t.py", 1, 1, "", "", 10, 1, parameter=True),)))
    del data["buffers"], data["entries"][0]["buffer"]
    assert built(Ledger, data).parameters == 10


class Masked(nn.Module):
    """A module with a buffer of its own, and one inside, of which it uses a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(10))
        self.inner = nn.Module()
        self.inner.register_buffer("scale", torch.ones(20))

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return x * self.mask * self.inner.scale[:10] * given


def test_a_frozen_weight_lives_anyway() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8, bias=False), nn.ReLU())
    net[1].requires_grad_(False)
    with noclobber.watch(ledger=True) as seen:
        net(torch.ones(2, 4)).sum().backward()
    frozen = [one for one in seen.ledger().entries if one.module == "Sequential.1"]
    assert [(one.bytes, one.parameter) for one in frozen] == [(8 * 8 * 4, True)]


def test_buffers_live_anyway_wherever_they_are_used() -> None:
    net, x, given = nn.Sequential(Masked()), torch.ones(10, requires_grad=True), torch.ones(10)
    with noclobber.watch(ledger=True) as seen:
        net[0](x, given).sum().backward()
    assert (seen.ledger().bytes, seen.ledger().buffers) == (40, 40 + 80)
