"""Batches in place of data that is not on this machine: what `--shapes` asks for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from noclobber.model.fake import STEPS, Batch, Shape
from noclobber.observe.torch_api.patches import Patches


class Batches:
    """Gives batches of one kind to whoever asks a data loader. The data set is never read, and may be empty."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.given = 0

    def patch(self, patches: Patches) -> None:
        """Let each data loader give as many batches as its data would make; some where it has no data."""
        begin, count = DataLoader.__init__, DataLoader.__len__

        @functools.wraps(begin)
        def __init__(
            loader: Any,
            dataset: Any,
            batch_size: int | None = 1,
            shuffle: bool | None = None,
            *args: Any,
            **options: Any,
        ) -> None:
            begin(loader, dataset, batch_size, None, *args, **options)  # PyTorch refuses to shuffle an empty data set

        def length(loader: Any) -> int:
            try:
                return count(loader) or STEPS
            except TypeError:
                return STEPS

        def __iter__(loader: Any) -> Iterator[Any]:
            for _ in range(length(loader)):
                self.given += 1
                yield pytree.tree_map_only(Shape, _made, self._batch)

        for name, function in {"__init__": __init__, "__len__": length, "__iter__": __iter__}.items():
            patches.put(DataLoader, name, function)

    def notes(self) -> list[str]:
        """Return in words that no data loader was asked."""
        return ["`--shapes` was not used: the program asked no `DataLoader` for a batch"] * (not self.given)


def _made(shape: Shape) -> torch.Tensor:
    return torch.empty(shape.sizes, dtype=getattr(torch, shape.dtype))
