"""Operators that a GPU computes in another way than PyTorch's rules for shapes say: products of groups of matrices and
norms; and the memory that the first product of matrices takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from noclobber.model.fake import Gpu
from noclobber.observe.fake.gpu.devices import HALVES, is_played
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor

aten = torch.ops.aten
Fresh = Callable[[Callable[[], Any]], Any]
"""Makes fake tensors, and counts them."""
OnShapes = Callable[[Any, Sequence[type], Sequence[Any], dict[str, Any]], Any]
"""Runs an operator on shapes."""
Answers = dict[Any, Callable[..., Any]]
"""What is answered to operators."""
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
_LARGE = (9, 10, 12)
"""Major compute capabilities for which a workspace has 32 MiB; others have 8 MiB and 128 KiB (torch 2.13,
CublasHandlePool.cpp)."""


class Cublas:
    """The workspaces that PyTorch takes at the first product of matrices, and keeps: each thread one on each device,
    and backward of a device has a thread of its own."""

    def __init__(self, gpu: Gpu, fresh: Fresh) -> None:
        self._size = 32 * 2**20 if gpu.capability[0] in _LARGE else 2 * 4096 * 2**10 + 8 * 16 * 2**10
        self._fresh = fresh
        self._workspaces: dict[tuple[torch.device, bool], torch.Tensor] = {}

    def multiplied(self, func: Any, result: Any) -> None:
        """Take a workspace if an operator that has run is the first product of a thread on a device."""
        if func._schema.name not in _PRODUCTS or not (isinstance(result, FakeTensor) and is_played(result.fake_device)):
            return
        key = result.fake_device, engine_state.current_node() is not None
        if key not in self._workspaces:
            made = self._fresh(lambda: torch.empty(self._size, dtype=torch.uint8, device=key[0]))
            self._workspaces[key] = made


_DTYPES = (torch.float32, torch.float16)
_ALIGNED = 16
"""Bytes to which the kernels align each row of a result."""


def grouped(on_shapes: OnShapes, fresh: Fresh) -> Answers:
    """Return what is answered to a product of groups of matrices, as experts compute them.

    PyTorch's rule for shapes knows them in bfloat16 alone, but its kernels compute them in float32 and float16 too
    (torch 2.13; tests/observe/fake/test_grouped.py).
    """
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


_WEIGHT = {aten.native_batch_norm.default: 1, aten.native_layer_norm.default: 2, aten.native_group_norm.default: 1}
"""Norms, with the argument that is the weight."""


def norms(on_shapes: OnShapes, fresh: Fresh) -> Answers:
    """Return what is answered to each norm: its statistics in the dtype of the kernels. The rules for shapes give them
    that of the input (torch 2.13)."""

    def normed(func: Any, *args: Any, **options: Any) -> Any:
        result = on_shapes(func, (), args, options)
        if result is NotImplemented or result[1].dtype is (dtype := _kept(func, result[0], args[_WEIGHT[func]])):
            return result
        device = result[0].fake_device
        kept = (fresh(partial(torch.empty, one.shape, dtype=dtype, device=device)) for one in result[1:])
        return (result[0], *kept)

    return {func: partial(normed, func) for func in _WEIGHT}


def _kept(func: Any, output: FakeTensor, weight: torch.Tensor | None) -> torch.dtype:
    """Return the dtype of what a norm keeps beside its input: a GPU computes it in float32, but that of groups in the
    dtype of the weight, as the CPU does (torch 2.13, group_norm.cpp, layer_norm.cpp, cuda/Normalization.cu)."""
    if output.dtype not in HALVES:
        return output.dtype
    if is_played(output.fake_device) and func is not aten.native_group_norm.default:
        return torch.float32
    return output.dtype if weight is None else weight.dtype
