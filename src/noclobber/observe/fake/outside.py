"""What stays real in a fake run: data loaders and data sets. Checkpoints are read as shapes, and none is written."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from noclobber.observe.fake.devices import Devices
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


class _File:
    """A file of safetensors, or a tensor in one. What is read of it goes to the device that is played."""

    def __init__(self, native: Any, away: Callable[[], Any], device: Any) -> None:
        self._native, self._away, self._device = native, away, device

    def __enter__(self) -> Self:
        self._native.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._native.__exit__(*error)

    def __getitem__(self, part: Any) -> Any:
        return self._read(self._native.__getitem__, part)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        return partial(self._read, found) if callable(found) else found

    def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        with self._away():
            found = read(*args)
        if type(found).__name__ == "PySafeSlice":
            return _File(found, self._away, self._device)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), found)


class Outside:
    """Runs a piece of the program without the modes of the fake run."""

    def __init__(self, away: Callable[[], Any], devices: Devices) -> None:
        self._away, self._devices = away, devices
        self.not_written: set[str] = set()
        """The files that the program would have written."""

    def patch(self, patches: Patches) -> None:
        """Let data loaders work on real tensors, and keep checkpoints as they are."""
        for kind in LOADING:
            for name in ("__init__", "__next__", "_next_data", "_reset"):
                if name in vars(kind):
                    patches.put(kind, name, self._real(getattr(kind, name)))
        patches.put(torch, "load", self._load(torch.load))
        patches.put(torch, "save", self._save(torch.save))
        if importlib.util.find_spec("safetensors") is not None:
            self._patch_safetensors(patches)

    def _patch_safetensors(self, patches: Patches) -> None:
        """Let files of safetensors be mapped as they are: only the shapes of what lies there are read."""
        import safetensors
        import safetensors.torch

        native, away, lies_on = safetensors.safe_open, self._away, self._devices.lies_on

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> _File:
            return _File(native(filename, framework, "cpu", **options), away, lies_on(device))

        for module in (safetensors, safetensors.torch):
            patches.put(module, "safe_open", safe_open)
        patches.put(safetensors.torch, "save_file", self._save(safetensors.torch.save_file))

    def _real(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def real(*args: Any, **options: Any) -> Any:
            with self._away(), _unpinned(args[-1]):
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
