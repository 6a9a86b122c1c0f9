"""Functions of PyTorch's Python API that do the same as an operator and read their arguments faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from noclobber.observe.core.written import written_by
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from torch._ops import OpOverload

NUMBERS = frozenset((bool, int, float, complex))
"""The types of Python's numbers."""


class Quick(NamedTuple):
    """A function of PyTorch's own Python API that does the same as an operator, given arguments of some types.

    It reads its arguments in a half to three quarters of the time that a function of `torch.ops` takes.
    """

    function: Callable[..., object]
    types: frozenset[type]
    most: int
    """The number of arguments, all given by position, up to which it does the same."""


QUICKER = frozenset(
    """
    aten::as_strided_ aten::chunk aten::fill_.Scalar aten::gru_cell aten::lstm_cell aten::native_batch_norm
    aten::resize_ aten::rnn_relu_cell aten::rnn_tanh_cell aten::split_with_sizes
    """.split()  # noqa: SIM905
)
"""Operators, other than those with a method of one or two tensors, that have such a function and are called often."""


def quicker(op: OpOverload[..., object]) -> Quick | None:
    """Return the function to call in place of an operator; None if it is not sure that there is one.

    A function calls the one overload that there is; of operators that take numbers for tensors, the one for tensors; of
    `fill_` with a number, the one for numbers. The other overloads of `copy_` are TorchScript's own (torch 2.13;
    tests/observe/core/test_quicker.py).
    """
    written, name, overload = written_by(op._schema), op._schema.name, op._overloadname
    function = private.function(name.removeprefix("aten::"))
    if function is None:
        return None
    if (name if overload == "default" else f"{name}.{overload}") in QUICKER:
        return Quick(function, private.PLAIN | NUMBERS | {list, type(None)}, len(op._schema.arguments))
    if not (name.startswith("aten::") and name.endswith("_")) or written is None or written.only_moves:
        return None
    numbers = private.takes_numbers(name)
    if overload == "Tensor":
        sure = numbers
    else:
        sure = overload == "default" and (name == "aten::copy_" or len(private.overloads_of(op._overloadpacket)) == 1)
    return Quick(function, private.PLAIN | NUMBERS if numbers else private.PLAIN, 2) if sure else None
