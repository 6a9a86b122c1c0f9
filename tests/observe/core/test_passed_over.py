"""Writes that are passed over: of operators to memory of their own, and under `install` all that move no version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import noclobber
from noclobber.observe.core.records import moment
from noclobber.observe.recorder import CONTEXT
from noclobber.observe.torch_api import private


@pytest.fixture
def in_python() -> Iterator[None]:
    with noclobber.watch():
        if CONTEXT.native is not None:
            pytest.skip("the native part takes these saves")
        yield


@pytest.mark.usefixtures("in_python")
def test_a_tensor_shares_its_storage_with_the_saves_of_it_and_with_nothing_else() -> None:
    made = torch.randn(3)
    assert private.is_only_holder(made)
    weight = torch.randn(3, requires_grad=True)
    product = made * weight
    assert not private.is_only_holder(made)
    product.sum().backward()
    del product
    assert private.is_only_holder(made)
    view = made[1:]
    assert not private.is_only_holder(made)
    assert not private.is_only_holder(view)


@pytest.mark.usefixtures("in_python")
def test_what_operators_write_inside_files_no_saves() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)  # it copies its bias into the result, and then adds to it
    outputs = [layer(x) for _ in range(4)]
    assert private.storage_key(x) not in CONTEXT.live.by_storage
    x.add_(1)
    assert private.storage_key(x) in CONTEXT.live.by_storage
    del outputs


def test_a_write_inside_an_operator_to_a_save_is_found() -> None:
    made, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with noclobber.watch() as watched:
        product = made * weight
        version = made._version
        with torch._C._ExcludeDispatchKeyGuard(below):  # as operators call others
            made.add_(1)
        assert made._version == version
        product.sum().backward()
    (found,) = watched.findings
    assert found.code == "NC201"
    assert torch.equal(weight.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]  # right is 1


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
    assert [one.key for one in written] == [private.storage_key(norm.num_batches_tracked)]


@contextmanager
def _installed() -> Iterator[None]:
    handle = noclobber.install()
    try:
        yield
    finally:
        handle.uninstall()
