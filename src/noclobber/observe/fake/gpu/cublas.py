"""The workspaces of cuBLAS: PyTorch takes them from a GPU's memory at the first product of matrices, and keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noclobber.model.fake import Gpu
from noclobber.observe.fake.gpu.devices import is_played
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor

_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
_LARGE = (9, 10, 12)
"""Major compute capabilities for which a workspace has 32 MiB; others have 8 MiB and 128 KiB (torch 2.13,
CublasHandlePool.cpp)."""


class Cublas:
    """Each thread has a workspace on each device, and backward of a device has a thread of its own. `fresh` makes fake
    tensors, and counts them."""

    def __init__(self, gpu: Gpu, fresh: Callable[[Callable[[], Any]], Any]) -> None:
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
