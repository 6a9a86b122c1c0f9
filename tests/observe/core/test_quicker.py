"""The kernels call functions of PyTorch's Python API where these do the same as the operators; the facts about PyTorch
behind that."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import noclobber
from noclobber.observe.core import quicker, write_kernels
from noclobber.observe.torch_api import private


@pytest.fixture(scope="module")
def with_a_function() -> set[str]:
    with noclobber.watch():  # registers the kernels
        names = [f"{namespace}::{rest}" for namespace, rest in write_kernels.kernels]
    return {one for one in names if quicker.quicker(private.overload(one)) is not None}


class _Reached(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one.tolist() if isinstance(one, torch.Tensor) else one for one in args]
        self.names.append(f"{func} {given} {sorted(kwargs or {})}")
        return func(*args, **(kwargs or {}))


def _reached(function: Any, args: tuple[Any, ...]) -> tuple[object, ...]:
    """Return what a call comes to: the operators with their arguments, the results, and what becomes of the first
    argument. A function returns several tensors as a tuple, an operator may return a list."""
    written, *others = (one.clone() if isinstance(one, torch.Tensor) else one for one in args)
    with _Reached() as reached, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            result = function(written, *others)
        except Exception as error:  # the operator takes other arguments
            return (type(error), *reached.names)
    values = [one.tolist() for one in (result if isinstance(result, (list, tuple)) else [result])]
    after = (written._version, written.requires_grad, written.shape, written.stride(), str(written.tolist()))
    return (result is written, str(values), *after, *reached.names)


def test_a_method_reaches_the_same_operator_with_the_same_arguments(with_a_function: set[str]) -> None:
    for name in sorted(with_a_function - quicker.QUICKER):
        operator = private.overload(name)
        quick = quicker.quicker(operator)
        assert quick is not None
        _reaches_the_same(operator, quick)


def _reaches_the_same(operator: Any, quick: Any) -> None:
    for dtype in (torch.float32, torch.int64):
        a, b, single = torch.ones(3, dtype=dtype) / 2, torch.full((3,), 2, dtype=dtype), torch.tensor(2, dtype=dtype)
        more = [(a, number) for number in (2, 0.5, True, 2j)] if int in quick.types else []
        takes_two = [str(one.type) for one in operator._schema.arguments[1:2]] == ["Tensor"]
        for args in [(a,), *([(a, b), (a, single), (single, single), *more] if takes_two else [])]:
            by_operator = _reached(operator._op, args)
            if len(by_operator) > 1 or not isinstance(by_operator[0], type):  # else it takes other arguments
                assert _reached(quick.function, args) == by_operator, str(operator)


_x, _h, _c = torch.arange(6.0).reshape(2, 3), torch.ones(2, 4), torch.zeros(2, 4)
_w, _b = torch.ones(2), torch.zeros(2)


def _cell(gates: int) -> tuple[torch.Tensor, ...]:
    return (torch.ones(4 * gates, 3), torch.ones(4 * gates, 4), torch.ones(4 * gates), torch.ones(4 * gates))


CALLS: dict[str, list[tuple[Any, ...]]] = {
    "aten::as_strided_": [(_x, [3, 2], [1, 3]), (_x, [2], [2], 1), (_x, [], [], 5)],
    "aten::chunk": [(_x, 2), (_x, 2, 1), (_x, 3, -1), (torch.arange(8), 5, 0)],
    "aten::fill_.Scalar": [
        *((one, number) for one in (_x, torch.arange(3)) for number in (2, 0.5, True, False)),
        (torch.zeros(2, dtype=torch.complex64), 2j),
    ],
    "aten::gru_cell": [(_x, _h, *_cell(3)), (_x, _h, *_cell(3)[:2]), (_x, _h, *_cell(3)[:2], None, None)],
    "aten::lstm_cell": [(_x, [_h, _c], *_cell(4)), (_x, [_h, _c], *_cell(4)[:2], None, None)],
    "aten::native_batch_norm": [
        (_x.t(), _w, _b, _b.clone(), _w.clone(), True, 0.1, 1e-5),
        (_x.t(), None, None, _b.clone(), _w.clone(), False, 0.1, 1e-5),
        (_x.t(), _w, None, None, None, True, 1, 0),
    ],
    "aten::resize_": [(_x, [3, 2]), (_x, [6]), (_x, []), (torch.zeros(1, 2, 2, 2), [1, 2, 2, 2])],
    "aten::rnn_relu_cell": [(_x, _h, *_cell(1)), (_x, _h, *_cell(1)[:2], None, None)],
    "aten::rnn_tanh_cell": [(_x, _h, *_cell(1)), (_x, _h, *_cell(1)[:2], None, None)],
    "aten::split_with_sizes": [(_x, [1, 1]), (_x, [1, 2], 1), (_x, [3, 0], -1)],
}


@pytest.mark.parametrize("name", sorted(quicker.QUICKER))
def test_a_function_reaches_the_same_operator_with_the_same_arguments(name: str) -> None:
    operator = private.overload(name)
    quick = quicker.quicker(operator)
    assert quick is not None
    for args in CALLS[name]:
        assert quick.types.issuperset(map(type, args))
        assert len(args) <= quick.most
        reached = _reached(quick.function, args)
        assert not isinstance(reached[0], type)  # it takes these arguments
        assert reached == _reached(operator._op, args)


def test_the_operators_that_programs_write_with_most_have_a_method(with_a_function: set[str]) -> None:
    most = {"aten::copy_", "aten::sigmoid_", "aten::tanh_", "aten::relu_", "aten::zero_", "aten::add_.Tensor"}
    assert most <= with_a_function


def test_an_operator_whose_method_may_call_another_has_none(with_a_function: set[str]) -> None:
    assert not with_a_function & {"aten::add_.Scalar", "aten::fill_.Tensor", "aten::t_", "aten::detach_"}


def test_an_error_of_a_method_is_the_error_of_the_operator() -> None:
    def said() -> str:
        leaf = torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError) as raised:
            leaf.sigmoid_()
        return str(raised.value)

    bare = said()
    with noclobber.watch():
        assert said() == bare
