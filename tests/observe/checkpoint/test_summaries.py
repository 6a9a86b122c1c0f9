"""A tensor that a region computes on a device is compared by a summary of its numbers: rounding makes no difference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noclobber.observe.takers.checkpoint.regions import far, rough

SIZES = st.sampled_from([1, 7, 300, 5000])


def numbers(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@given(SIZES, st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]))
def test_rounding_is_not_far(size, seed, dtype):
    tensor = numbers(size, seed).to(dtype)
    noise = 1 + torch.finfo(dtype).eps * numbers(size, seed + 1).clamp(-2, 2)
    assert not far(rough(tensor), (tensor * noise).to(dtype))


@given(SIZES, st.integers(0, 1000), st.floats(0.5, 3).filter(lambda factor: abs(factor - 1) > 0.01))
def test_other_numbers_are_far(size, seed, factor):
    tensor = numbers(size, seed)
    assert far(rough(tensor), tensor * factor)
    assert far(rough(tensor), -tensor)
    assert far(rough(tensor), torch.zeros_like(tensor))
    assert far(rough(torch.zeros_like(tensor)), tensor)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_no_number_is_compared_too(value):
    tensor = numbers(300, 0)
    masked = tensor.clone()
    masked[::3] = value
    assert not far(rough(masked), masked.clone())
    assert far(rough(masked), tensor)
    assert far(rough(tensor), masked)
    other = masked * 2
    assert far(rough(masked), other)


def test_a_tensor_of_another_size_is_far():
    assert far(rough(torch.ones(3)), torch.ones(4)) is True


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.bool], ids=str)
def test_what_cannot_be_added_up_has_no_summary(dtype):
    assert rough(torch.ones(3).to(dtype)) is None
