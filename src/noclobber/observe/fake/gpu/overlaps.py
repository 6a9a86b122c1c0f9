"""Writes that PyTorch refuses as elements share memory: its kernels check that, and kernels of shapes do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in

_ITSELF = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
_OTHER = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)
_CHECKED = frozenset({"aten::copy_"})
"""Operators that check, beside those that work element by element. `fill_` does not: it may write twice."""


def refuse_overlaps(func: Any, writes: Sequence[torch.Tensor], args: Sequence[Any], options: dict[str, Any]) -> None:
    """Raise what PyTorch raises, in its words, where an operator writes into elements that share memory, or reads what
    it writes at another place (torch 2.13, MemoryOverlap.cpp; tests/observe/fake/test_overlaps.py)."""
    if torch.Tag.pointwise not in func.tags and func._schema.name not in _CHECKED:
        return
    if func._schema.name in ("aten::fill_", "aten::masked_fill_", "aten::zero_"):
        return
    for output in writes:
        if any(size > 1 and stride == 0 for size, stride in zip(output.shape, output.stride(), strict=True)):
            raise RuntimeError(_ITSELF)
        for given in tensors_in(args, options):
            if isinstance(given, FakeTensor) and given is not output and _overlap_in_part(output, given):
                raise RuntimeError(_OTHER)


def _overlap_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors without gaps share some memory, but not element by element."""
    if storages.storage(one)._cdata != storages.storage(other)._cdata or not (one.numel() and other.numel()):
        return False
    is_dense = torch.ops.aten.is_non_overlapping_and_dense.default
    if not (is_dense(one) and is_dense(other)):
        return False
    begin, start = (int(of.storage_offset()) * of.itemsize for of in (one, other))
    if (begin, one.nbytes) == (start, other.nbytes):
        return one.stride() != other.stride() or one.shape != other.shape
    return begin < start + other.nbytes and start < begin + one.nbytes
