"""Products of groups of matrices, as experts compute them. PyTorch's rule for shapes knows them in bfloat16 alone, but
its kernels compute them in float32 and float16 too (torch 2.13; tests/observe/fake/test_grouped.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from noclobber.observe.torch_api import private

_DTYPES = (torch.float32, torch.float16)
_ALIGNED = 16
"""Bytes to which the kernels align each row of a result."""


def grouped(
    on_shapes: Callable[[Any, Sequence[type], Sequence[Any], dict[str, Any]], Any],
    fresh: Callable[[Callable[[], torch.Tensor]], torch.Tensor],
) -> dict[Any, Callable[..., Any]]:
    """Return what is answered to such a product. `on_shapes` runs it on shapes, `fresh` makes a fake tensor."""
    operator = private.lookup("ops.aten._grouped_mm").default

    def product(one: Any, other: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        if one.dtype not in _DTYPES or other.dtype is not one.dtype or bias is not None:
            return on_shapes(operator, (), (one, other, offs, bias, out_dtype), {})
        rows, columns = one.shape[-2], other.shape[-1]
        groups = offs.shape[0] if one.dim() == other.dim() == 2 else one.shape[0]
        shape = (rows, columns) if one.dim() != other.dim() else (groups, rows, columns)
        dtype = out_dtype or one.dtype
        row = -(-columns * dtype.itemsize // _ALIGNED) * _ALIGNED // dtype.itemsize
        strides = (rows * row, row, 1)[-len(shape) :]
        return fresh(partial(torch.empty_strided, shape, strides, dtype=dtype, device=one.fake_device))

    return {operator: product}
