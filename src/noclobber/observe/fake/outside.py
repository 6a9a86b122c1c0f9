"""What stays real in a fake run: data loaders and data sets. Checkpoints are read as shapes, and none is written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from noclobber.observe.fake.devices import Devices
from noclobber.observe.torch_api.patches import Patches


class Outside:
    """Runs a piece of the program without the modes of the fake run."""

    def __init__(self, away: Callable[[], Any], devices: Devices) -> None:
        self._away, self._devices = away, devices
        self.not_written: set[str] = set()
        """The files that the program would have written."""

    def patch(self, patches: Patches) -> None:
        """Let data loaders work on real tensors, and keep checkpoints as they are."""
        import torch.utils.data.dataloader as loaders

        kinds = (loaders._SingleProcessDataLoaderIter, loaders._MultiProcessingDataLoaderIter)
        for kind in (loaders._BaseDataLoaderIter, *kinds):
            for name in ("__init__", "__next__", "_next_data", "_reset"):
                if name in vars(kind):
                    patches.put(kind, name, self._real(getattr(kind, name)))
        patches.put(torch, "load", self._load(torch.load))
        patches.put(torch, "save", self._save(torch.save))

    def _real(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def real(*args: Any, **options: Any) -> Any:
            with self._away(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "'pin_memory' argument")  # nothing is pinned: no device is here
                return native(*args, **options)

        return real

    def _load(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
            device = torch.device("cpu")
            if isinstance(map_location, (str, torch.device)):
                device = self._devices.lies_on(map_location)
            loaded = native(f, "cpu", *args, **options)
            if device == torch.device("cpu"):
                return loaded
            return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), loaded)

        return load

    def _save(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
            name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "")
            self.not_written.add(str(name) or "a file")

        return save
