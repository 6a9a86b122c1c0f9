"""The kernels call methods of tensors where these do the same as the operators; the facts about PyTorch behind that."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import noclobber
from noclobber.observe.core import write_kernels
from noclobber.observe.torch_api import private


def _with_a_method() -> list[str]:
    with noclobber.watch():  # registers the kernels
        names = [f"{namespace}::{rest}" for namespace, rest in write_kernels.kernels]
    return sorted(one for one in names if write_kernels._method(private.overload(one)) is not None)


WITH_A_METHOD = _with_a_method()


class _Reached(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(f"{func} {len(args)} {sorted(kwargs or {})}")
        return func(*args, **(kwargs or {}))


def _reached(function: Any, args: tuple[Any, ...]) -> tuple[object, ...]:
    written = args[0].clone()
    with _Reached() as reached, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            result = function(written, *args[1:])
        except Exception as error:  # the operator takes other arguments
            return (type(error), *reached.names)
    return (result is written, written._version, written.requires_grad, str(written.tolist()), *reached.names)


@pytest.mark.parametrize("name", WITH_A_METHOD)
def test_a_method_reaches_the_same_operator_with_the_same_arguments(name: str) -> None:
    operator = private.overload(name)
    method = write_kernels._method(operator)
    for dtype in (torch.float32, torch.int64):
        a, b, single = torch.ones(3, dtype=dtype) / 2, torch.full((3,), 2, dtype=dtype), torch.tensor(2, dtype=dtype)
        more = [(a, number) for number in (2, 0.5, True, 2j)] if private.takes_numbers(operator._schema.name) else []
        takes_two = [str(one.type) for one in operator._schema.arguments[1:2]] == ["Tensor"]
        for args in [(a,), *([(a, b), (a, single), (single, single), *more] if takes_two else [])]:
            by_operator = _reached(operator._op, args)
            if len(by_operator) > 1 or not isinstance(by_operator[0], type):  # else it takes other arguments
                assert _reached(method, args) == by_operator


@pytest.mark.parametrize(
    "name", ["aten::copy_", "aten::sigmoid_", "aten::tanh_", "aten::relu_", "aten::zero_", "aten::add_.Tensor"]
)
def test_the_operators_that_programs_write_with_most_have_a_method(name: str) -> None:
    assert name in WITH_A_METHOD


@pytest.mark.parametrize("name", ["aten::add_.Scalar", "aten::fill_.Tensor", "aten::t_", "aten::detach_"])
def test_an_operator_whose_method_may_call_another_has_none(name: str) -> None:
    assert name not in WITH_A_METHOD


def test_an_error_of_a_method_is_the_error_of_the_operator() -> None:
    def said() -> str:
        leaf = torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError) as raised:
            leaf.sigmoid_()
        return str(raised.value)

    bare = said()
    with noclobber.watch():
        assert said() == bare
