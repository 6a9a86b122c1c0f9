"""Writes that are passed over: of operators to memory of their own, and under `install` all that move no version."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.records import moment
from noclobber.observe.torch_api.tensors import storages

BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""Without this key, writes are made as operators make them inside."""


@pytest.fixture
def in_python() -> Iterator[None]:
    with noclobber.watch():
        if CONTEXT.native is not None:
            pytest.skip("the native part takes these saves")
        yield


@pytest.mark.usefixtures("in_python")
def test_a_tensor_shares_its_storage_with_the_saves_of_it_and_with_nothing_else() -> None:
    made = torch.randn(3)
    assert storages.is_only_holder(made)
    weight = torch.randn(3, requires_grad=True)
    product = made * weight
    assert not storages.is_only_holder(made)
    product.sum().backward()
    del product
    assert storages.is_only_holder(made)
    view = made[1:]
    assert not storages.is_only_holder(made)
    assert not storages.is_only_holder(view)


WRITES_INSIDE = """
import noclobber, torch
from noclobber.observe.arming.recorder import CONTEXT

with noclobber.watch():
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)  # it copies its bias into the result, and then adds to it
    CONTEXT.live.sort()
    outputs = [layer(x){} for _ in range(4)]
    print(len(CONTEXT.live.by_storage), len(CONTEXT.live.unsorted))
    x.add_(1)
    print(len(CONTEXT.live.by_storage), len(CONTEXT.live.unsorted))
"""


OF_OUT = torch.__version__ >= "2.13"
"""Torch 2.10 holds one reference more to what it hands a kernel as `out`; 2.13 and 2.15 do not."""


@pytest.mark.parametrize(
    ("then", "passed_over", "filed"),
    [
        ("", "0 4", "1 0"),
        # `abs` makes its result, and `abs.out` fills it.
        pytest.param(".abs()", "0 8", "5 0", marks=pytest.mark.skipif(not OF_OUT, reason="it has a reference more")),
    ],
)
def test_what_operators_write_inside_files_no_saves(then: str, passed_over: str, filed: str) -> None:
    """In a process of its own: what other tests of a process have left alive may ask for the saves to be filed."""
    environ = {**os.environ, "NOCLOBBER_PURE": "1"}
    words = [sys.executable, "-c", WRITES_INSIDE.format(then)]
    run = subprocess.run(words, capture_output=True, text=True, env=environ, check=True)
    assert run.stdout.splitlines() == [passed_over, filed]


def test_statistics_that_a_save_lies_on_are_found_without_their_bytes() -> None:
    norm, x = torch.nn.BatchNorm1d(3), torch.randn(2, 3, requires_grad=True)
    norm.running_var = torch.full((3,), 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch(contents=False) as watched:
            result = norm.eval()(x)
            norm.train()(x)
            result.sum().backward()
    assert [one.code for one in watched.findings] == ["NC203"]


def scalar() -> tuple[torch.Tensor, Callable[[], object]]:
    held = torch.tensor(2.0)
    return held, lambda: held.add_(3)


def statistic() -> tuple[torch.Tensor, Callable[[], object]]:
    norm = torch.nn.BatchNorm1d(3)
    assert norm.running_var is not None
    return norm.running_var, lambda: norm(torch.randn(2, 3))


@pytest.mark.parametrize("make", [scalar, statistic])
def test_a_write_to_what_was_exported_and_is_held_is_found(
    make: Callable[[], tuple[torch.Tensor, Callable[[], object]]],
) -> None:
    """The save lies on the same memory in a storage of its own."""

    def gradient() -> list[float]:
        held, write = make()
        saved = torch.from_dlpack(held)
        weight = torch.ones(3, requires_grad=True)
        product = saved * weight
        right = saved.expand(3).tolist()
        write()
        product.sum().backward()
        assert weight.grad is not None
        return [one - two for one, two in zip(weight.grad.tolist(), right, strict=True)]

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(contents=False) as watched:
        assert any(gradient())
    assert len(watched.findings) == 1
    with noclobber.preserve():
        assert not any(gradient())


def second_of_one() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ones(3)
    return made, made


def second_of_view() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ones(3)
    return made, made.view(3)


def second_of_array() -> tuple[torch.Tensor, torch.Tensor]:
    array = numpy.ones(3, dtype=numpy.float32)
    return torch.from_numpy(array), torch.from_numpy(array)


def second_of_dlpack() -> tuple[torch.Tensor, torch.Tensor]:
    exporter = torch.ones(3)
    return torch.from_dlpack(exporter), exporter


def second_of_buffer() -> tuple[torch.Tensor, torch.Tensor]:
    buffer = bytearray(numpy.ones(3, dtype=numpy.float32).tobytes())
    return torch.frombuffer(buffer, dtype=torch.float32), torch.frombuffer(buffer, dtype=torch.float32)


@pytest.mark.parametrize("make", [second_of_one, second_of_view, second_of_array, second_of_dlpack, second_of_buffer])
def test_a_write_inside_an_operator_to_the_memory_of_a_save_is_found(
    make: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    def gradient() -> torch.Tensor | None:
        saved, written = make()
        weight = torch.ones(3, requires_grad=True)
        product = saved * weight
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            written.zero_()
        product.sum().backward()
        return weight.grad

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch() as watched:
        assert gradient() is not None
    assert [one.code for one in watched.findings] == ["NC201"]
    with noclobber.preserve():
        kept = gradient()
    assert kept is not None
    assert kept.tolist() == [1, 1, 1]


def test_install_remembers_no_write_that_moves_no_version() -> None:
    norm = torch.nn.BatchNorm1d(3)
    versions = [one._version for one in norm.buffers()]
    with _installed():
        begin = moment()
        norm(torch.nn.functional.linear(torch.randn(2, 3), torch.randn(3, 3), torch.randn(3)))
        written = [one for one in CONTEXT.memory.recent if one.moment > begin]
    moved = [one._version - before for one, before in zip(norm.buffers(), versions, strict=True)]
    assert moved == [0, 0, 1]
    assert norm.running_mean is not None
    assert norm.running_mean.any()
    assert norm.num_batches_tracked is not None
    assert [one.key for one in written] == [storages.storage_key(norm.num_batches_tracked)]


@contextmanager
def _installed() -> Iterator[None]:
    handle = noclobber.install()
    try:
        yield
    finally:
        handle.uninstall()


def test_install_remembers_a_collective_whose_writes_another_thread_counts(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        with _installed():
            result = torch.ones(3, requires_grad=True).exp()
            dist.all_gather([result.detach()], torch.zeros(3))
            assert result._version == 1
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
            written = [one.written.op for one in CONTEXT.memory.recent]
    finally:
        dist.destroy_process_group()
    assert "c10d::allgather_" in written


def fake() -> None:
    with FakeTensorMode():
        torch.nn.BatchNorm1d(3)(torch.randn(4, 3, requires_grad=True)).sum()


def of_other_layout() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True).to_mkldnn()
    torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3), training=True)


@pytest.mark.parametrize("program", [fake, of_other_layout])
@pytest.mark.parametrize("mode", [lambda: noclobber.watch(contents=True), noclobber.preserve])
def test_statistics_without_an_address_are_no_trouble(
    program: Callable[[], None], mode: Callable[[], AbstractContextManager[object]]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mode():
            program()
    assert not CONTEXT.bus.lost
