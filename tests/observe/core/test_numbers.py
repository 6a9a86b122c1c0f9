"""Python numbers among tensors: bit for bit what PyTorch computes alone, whatever the dtypes."""

import sys

import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.written import NUMBERS_AS_TENSORS
from noclobber.observe.core.writes import kernel_functions

T = [
    torch.tensor([1.5, 2.5]),
    torch.tensor(1.7),
    torch.tensor([3, 4], dtype=torch.int32),
    torch.tensor(2, dtype=torch.int8),
    torch.tensor([1.1, 2.3], dtype=torch.bfloat16),
    torch.tensor(1.1, dtype=torch.float16),
]
CALLS = {
    "number ** tensor": lambda t, n: n**t,
    "tensor ** number": lambda t, n: t**n,
    "pow out": lambda t, n: torch.pow(n, t, out=torch.empty_like(torch.pow(n, t))),
    "equal": lambda t, n: t == n,
    "eq_": lambda t, n: t.clone().eq_(n),
    "remainder": lambda t, n: t % n,
    "number % tensor": lambda t, n: n % t,
    "floor_divide": lambda t, n: t // n,
    "fmod": lambda t, n: torch.fmod(t, n),
    "where": lambda t, n: torch.where(t > n, t, n),
    "clamp_": lambda t, n: t.clone().clamp_(max=n),
    "maximum": lambda t, n: torch.clamp(t, min=n),
    "fill_": lambda t, n: t.clone().fill_(n),
    "setitem": lambda t, n: t.clone().index_fill_(0, torch.tensor([0]), n) if t.dim() else t.clone().fill_(n),
    "masked": lambda t, n: t.masked_fill(t > 1, n),
    "add_": lambda t, n: t.clone().float().add_(n, alpha=2),
    "div_": lambda t, n: t.clone().float().div_(n, rounding_mode="floor"),
    "xlogy": lambda t, n: torch.xlogy(n, t),
    "atan2": lambda t, n: torch.special.zeta(t.float(), n),
    "ldexp": lambda t, n: torch.ldexp(t.float(), torch.tensor(2)),
    "float_power": lambda t, n: torch.float_power(n, t),
    "bitwise": lambda t, n: t & int(n) if not t.dtype.is_floating_point else t,
    "shift": lambda t, n: t << int(n) if not t.dtype.is_floating_point else t,
    "lerp": lambda t, n: torch.lerp(t.float(), t.float() + 1, n),
    "copysign": lambda t, n: torch.copysign(t, -n),
}


def outcome(call, tensor, number):
    try:
        result = call(tensor, number)
    except RuntimeError as error:
        return str(error)
    return result


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("around", [noclobber.watch, noclobber.install], ids=["watch", "install"])
def test_numbers_compute_as_before(call, around):
    for tensor in T:
        for number in (2, 3.7, True):
            bare = outcome(call, tensor, number)
            with around():
                seen = outcome(call, tensor, number)
            if isinstance(bare, str):
                assert seen == bare
            else:
                assert (seen.dtype, seen.tolist()) == (bare.dtype, bare.tolist())


NUMBERS_FIRST = {
    "aten::pow.Scalar": lambda t: 2**t,
    "aten::isin.Scalar_Tensor": lambda t: torch.isin(2, t),
}


def test_all_that_hand_on_a_number_are_called():
    assert NUMBERS_FIRST.keys() == NUMBERS_AS_TENSORS


@pytest.mark.parametrize("call", NUMBERS_FIRST.values(), ids=NUMBERS_FIRST)
def test_no_kernel_is_handed_a_number_that_the_program_gave_to_another_operator(call):
    handed = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename == kernel_functions.__file__ and "written" in frame.f_locals:
            handed.extend(one for one in frame.f_locals["args"] if isinstance(one, int))

    tensor = torch.ones(3)
    with noclobber.watch():
        by_python = CONTEXT.native is None
        sys.setprofile(profile)
        try:
            call(tensor)
            tensor.add_(3)
        finally:
            sys.setprofile(None)
    assert handed == [3] * by_python
