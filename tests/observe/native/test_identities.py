"""Python and the native part agree on which tensors share memory, and on which saves hold the same bytes."""

import json
import os
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import noclobber
from noclobber.observe.native.load import OFF, load
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness import digests
from tests.observe.native.conftest import missing
from tests.observe.sizes import as_large

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)


Geometry = tuple[list[int], list[int], int]
"""The sizes, strides and offset of a view."""


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """A view with an offset, of even and odd sizes, expanded, overlapping, empty."""
    dims = draw(st.integers(0, 3))
    sizes = draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 8)), min_size=dims, max_size=dims))
    strides = draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 16)), min_size=dims, max_size=dims))
    return sizes, strides, draw(st.integers(0, 64))


@pytest.fixture(scope="module")
def hot_path() -> Any:
    """The functions of the native part, for which every tensor is large as long as no block has begun."""
    if why := missing():
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OFF, "0")
        return load()


@settings(max_examples=100, deadline=None)
@given(st.lists(geometries(), min_size=1, max_size=6), st.sampled_from(DTYPES), st.booleans(), st.booleans())
def test_both_know_the_same_memory_and_the_same_bytes(
    hot_path: Any, numbers: list[Geometry], dtype: torch.dtype, written: bool, freed: bool
) -> None:
    base = torch.zeros(512, dtype=dtype)
    views = [of.as_strided(*one) for one in numbers for of in (base, base.view(torch.int8))]
    if written:
        base.zero_()
    if freed:
        base.untyped_storage().resize_(0)
    with as_large():
        with noclobber.watch(contents=True):
            pass  # tells the native part, where it is on, what is large
        assert [hot_path.identity(one) for one in views] == [digests.identity(one) for one in views]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storages, "key_of_usual", storages.of_none)
        keys = [storages.storage_key(one) for one in views]
    assert [hot_path.storage_key(one) for one in views] == keys
    assert len(set(keys)) == 1


@settings(max_examples=200, deadline=None)
@given(geometries(), st.sampled_from(DTYPES), st.booleans())
def test_both_take_the_same_fingerprint(hot_path: Any, where: Geometry, dtype: torch.dtype, freed: bool) -> None:
    base = torch.arange(512).to(dtype)
    view = base.as_strided(*where)
    if freed:
        base.untyped_storage().resize_(0)
    native, by_python = hot_path.fingerprint(view), digests._fingerprint(view)
    assert native == by_python or (native is None and (freed or not view.numel()))


@pytest.mark.usefixtures("built")
def test_the_native_part_knows_which_tensors_share_a_counter() -> None:
    script = """
        import torch, noclobber
        from noclobber.observe.arming.recorder import CONTEXT
        base, x = torch.ones(4, 2), torch.ones(2, requires_grad=True)
        with noclobber.watch(contents=False):
            y = base.detach().flatten()[:2] * x  # saves no view
            shares = lambda one: CONTEXT.native.meet(0, one, 0, 0)
            print([shares(one) for one in (base, base[3], base.detach(), base.data, base.data[0], base * 1, x)])
            del y
            print(shares(base))
    """
    run = [sys.executable, "-c", dedent(script)]
    done = subprocess.run(run, env={**os.environ, OFF: "0"}, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str([True, True, True, False, False, False, False]), "False"], done.stderr


def found(program: str, environment: dict[str, str]) -> list[tuple[str, int]]:
    """The codes of what a program gets that makes the loss `z` of `x`, each with the number of writes named."""
    script = f"""
        import json, warnings, torch, noclobber
        warnings.simplefilter("ignore")
        x = torch.ones(64, 768, requires_grad=True)
        with noclobber.watch(contents=True) as seen:
            try:
                {program}
                z.backward()
            except RuntimeError:
                pass
        print(json.dumps([(one.code, len(one.writes)) for one in seen.findings]))
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(code, writes) for code, writes in json.loads(done.stdout)]


def test_a_column_of_the_same_size_is_another_save(either: dict[str, str]) -> None:
    column = "x.register_hook(lambda g: None); h = torch.rand(64, 768) * x; z = (h * h[:, :1].expand_as(h)).sum()"
    assert found(column, either) == []


def test_a_write_to_an_empty_slice_is_named(either: dict[str, str]) -> None:
    assert found("h = x.exp(); z = h.sum(); h[:0].add_(1)", either) == [("NC102", 1)]
