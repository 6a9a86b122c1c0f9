"""What an operator writes, as its schema says; tables correct the schemas that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from noclobber.observe.torch_api.tensors.tensor_state import tensors_in


class Written(NamedTuple):
    """What an overload writes. Arguments are given as (position, name)."""

    op: str
    arguments: tuple[tuple[int, str], ...]
    uncounted: bool
    """Whether it leaves the version counters as they are."""
    flag: int | None = None
    """The position of the flag that makes it write (batch norm's `training`); None if it always writes."""
    detaches: bool = False
    """Whether it cuts the tensor off its graph. PyTorch notices this by other means than versions."""
    undeclared: bool = False
    """Whether it writes although its schema does not say so."""
    fills: tuple[int, str] | None = None
    """The argument that it writes after saving it, without moving a version (kernel_functions.py); None for most."""

    @property
    def only_moves(self) -> bool:
        """Return True if it changes which memory a tensor shows, and no bytes."""
        return self.op in ("data=", "swap_tensors") or self.op.partition("::")[2] in _MOVING

    @property
    def leaves_storage(self) -> bool:
        """Return True if it gives a tensor another storage."""
        return self.op in ("data=", "swap_tensors", "aten::set_")

    @property
    def resizes(self) -> bool:
        """Return True if it may give a storage other memory."""
        return self.op in ("aten::resize_", "aten::resize_as_")

    @property
    def is_statistics(self) -> bool:
        """Return True if it writes batch norm's running statistics: training saves them but does not read them."""
        return self.op.partition("::")[2].startswith(_BATCH_NORM)

    @property
    def moves_no_version(self) -> bool:
        """Return True if no version moves. Of a collective one may: gloo gathers with a `copy_` in another thread."""
        return self.uncounted and not self.is_collective

    @property
    def is_collective(self) -> bool:
        """Return True if several processes take part. If one process stops the write, the others wait for it."""
        return self.op.startswith(_COLLECTIVES)


_BATCH_NORM = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_update_stats",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""They write running_mean and running_var, though their schemas do not say so (torch 2.13; test_coverage.py)."""
_UNCOUNTED = (
    "_fused_",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""Writing overloads that have no kernel to move the version (torch 2.13; tests/observe/core/test_coverage.py)."""


_MOVING = frozenset(
    """
    as_strided_ detach_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """.split()  # noqa: SIM905
)
"""The operators that PyTorch tags `inplace_view` (torch 2.13; tests/observe/core/test_coverage.py)."""

_FILLS = {"aten::rrelu_with_noise": (1, "noise"), "aten::rrelu_with_noise_": (1, "noise")}
"""The argument that an operator writes after saving it (torch 2.13; tests/observe/core/test_filled.py)."""
_MADE_OF = {"aten::rrelu_": "aten::rrelu_with_noise_"}
"""Operators that only make an argument and call another operator. The write is seen there."""
_COLLECTIVES = ("c10d::", "_c10d_functional::")


SHIFTS = ("aten::add_", "aten::sub_")
"""Writes whose derivative with respect to what they overwrite is one: the gradient of the old value is that of the new
value too, and one that skips such a write is right."""

RECURRENT = frozenset(
    """
    aten::gru aten::gru_cell aten::lstm aten::lstm_cell aten::rnn_relu aten::rnn_relu_cell aten::rnn_tanh
    aten::rnn_tanh_cell
    """.split()  # noqa: SIM905
)
"""Operators that write many times, but only to memory that they have made themselves, so these writes cannot change a
save. An LSTMCell on the CPU writes eight times (torch 2.13; tests/observe/core/test_recurrent.py)."""

NUMBERS_AS_TENSORS = frozenset({"aten::isin.Scalar_Tensor", "aten::pow.Scalar"})
"""Overloads that hand a number, as a tensor on the device of their other argument, to an overload that writes. Where
that device is not the CPU, PyTorch fails to give such a tensor to a kernel that is written in Python (Pow.cpp and
pybind_utils.cpp of torch 2.11 on CUDA; tests/device/test_right_programs.py, numbers_first)."""


def written_by(schema: torch.FunctionSchema) -> Written | None:
    """Return what an overload writes; None if it writes nothing. The tables above correct schemas that are wrong."""
    if schema.name in _MADE_OF:
        return None
    namespace, _, name = schema.name.partition("::")
    arguments: tuple[tuple[int, str], ...]
    if namespace == "aten" and name.startswith(_BATCH_NORM):
        arguments = tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.name.startswith("running_"))
        flag = next((i for i, a in enumerate(schema.arguments) if a.name in ("training", "train")), None)
        return Written(schema.name, arguments, True, flag) if arguments else None
    if namespace == "c10d" and name.endswith("_"):
        return Written(schema.name, ((0, schema.arguments[0].name),), True)
    if not schema.is_mutable:
        return None
    arguments = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if (alias := a.alias_info) is not None and alias.is_write
    )
    uncounted = namespace == "_c10d_functional" or (namespace == "aten" and name.startswith(_UNCOUNTED))
    fills, op = _FILLS.get(schema.name), next((name for name in _MADE_OF if _MADE_OF[name] == schema.name), schema.name)
    return Written(op, arguments, uncounted, detaches=schema.name == "aten::detach_", fills=fills)


def makes_many_views(schema: torch.FunctionSchema) -> bool:
    """Return True if an overload returns a list of views of its input (split, unbind, chunk ...)."""
    returns = schema.returns
    if schema.is_mutable or len(returns) != 1 or str(returns[0].type) != "List[Tensor]":
        return False
    return any(a.alias_info is not None and a.alias_info.after_set for a in schema.arguments)


def tensors(written: Written, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of the overload writes, also those in lists and nested lists."""
    if written.flag is not None and not args[written.flag]:
        return
    for position, name in written.arguments:
        yield from tensors_in(kwargs[name] if name in kwargs else args[position] if position < len(args) else None)


@cache
def what_is_written(func: torch._ops.OpOverload[..., object]) -> Written | None:
    """Return what an overload writes; None if it writes nothing."""
    return written_by(func._schema)
