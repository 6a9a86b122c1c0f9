"""What comes from outside into a fake run: data loaders and data sets, which stay real, and batches in place of data
that is not on this machine (`--shapes`)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from noclobber.model.fake import STEPS, Batch, Shape
from noclobber.observe.fake.gpu.devices import Devices
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import LOADING


@contextlib.contextmanager
def _unpinned(loader: Any) -> Iterator[None]:
    """Let a data loader pin nothing while it makes an iterator: no device is here."""
    if getattr(loader, "pin_memory", False) is not True:
        yield
        return
    loader.pin_memory = False
    try:
        yield
    finally:
        loader.pin_memory = True


@contextlib.contextmanager
def away() -> Iterator[None]:
    """Run a block of the program on real tensors, without the modes of the fake run."""
    with modes.no_modes(), modes.plain():
        yield


def patch(patches: Patches) -> None:
    """Let data loaders work on real tensors."""

    def real(native: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **options: Any) -> Any:
            with away(), _unpinned(args[-1]):
                return native(*args, **options)

        return work

    for kind in LOADING:
        for name in ("__init__", "__next__", "_next_data", "_reset"):
            if name in vars(kind):
                patches.put(kind, name, real(getattr(kind, name)))


class Batches:
    """Gives batches of one kind to whoever asks a data loader, or the function `giver`. The data set is never read, and
    may be empty. A function gives them on the device that is played, as most programs move them there in it."""

    def __init__(self, batch: Batch, giver: str, devices: Devices) -> None:
        self._batch, self._giver, self._devices = batch, giver, devices
        self._given = 0

    def one(self) -> Any:
        self._given += 1
        return pytree.tree_map_only(Shape, self._made, self._batch)

    def some(self, count: int) -> Iterator[Any]:
        for _ in range(count):
            yield self.one()

    def patch(self, patches: Patches) -> None:
        """Let each data loader give as many batches as its data would make; some where it has no data."""
        if self._giver:
            return
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
            return self.some(length(loader))

        for name, function in {"__init__": __init__, "__len__": length, "__iter__": __iter__}.items():
            patches.put(DataLoader, name, function)

    def notes(self) -> list[str]:
        """Return in words that nobody asked."""
        whom = (
            f"did not call a function `{self._giver}` of its files"
            if self._giver
            else "asked no `DataLoader` for a batch"
        )
        return [f"`--shapes` was not used: the program {whom}"] * (not self._given)

    def _made(self, shape: Shape) -> torch.Tensor:
        device = self._devices.played if self._giver else "cpu"
        return torch.empty(shape.sizes, dtype=getattr(torch, shape.dtype), device=self._devices.lies_on(device))
