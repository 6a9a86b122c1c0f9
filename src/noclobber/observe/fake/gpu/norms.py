"""The statistics that norms keep for backward, in the dtype of the kernels. The rules for shapes give them that of the
input (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from noclobber.observe.fake.gpu.devices import HALVES, is_played
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor

aten = torch.ops.aten
_WEIGHT = {aten.native_batch_norm.default: 1, aten.native_layer_norm.default: 2, aten.native_group_norm.default: 1}
"""Norms, with the argument that is the weight."""


def norms(
    on_shapes: Callable[[Any, Sequence[type], Sequence[Any], dict[str, Any]], Any],
    fresh: Callable[[Callable[[], torch.Tensor]], torch.Tensor],
) -> dict[Any, Callable[..., Any]]:
    """Return what is answered to each norm. `on_shapes` runs an operator on shapes, `fresh` makes a fake tensor."""

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
