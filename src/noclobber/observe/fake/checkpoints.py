"""Files of weights in a fake run: of those that are there only the shapes are read, and no file of the program changes.

What the program saves is kept in memory, without values. In its place lies a file of one line until the run ends, so
that the program finds, copies and loads it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from noclobber.observe.fake.gpu.devices import Devices
from noclobber.observe.fake.outside import away
from noclobber.observe.fake.values import know, known
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor

_LINE = b"noclobber: saved by a run without values, number "
_COPYING = {os: ("rename", "replace"), shutil: ("copyfile", "copy", "copy2", "move")}
"""Functions that put a file in the place of another."""


_STORAGES = (torch.UntypedStorage, torch.TypedStorage)


class _Pickler(pickle.Pickler):
    """Pickles all but tensors and storages, of which it only numbers each."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, (FakeTensor, *_STORAGES)) or type(obj) in (torch.Tensor, torch.nn.Parameter):
            self.tensors[id(obj)] = obj
            return id(obj)
        return None


class _Unpickler(pickle.Unpickler):
    """Makes what was pickled, with new tensors of the same shapes."""

    def __init__(self, file: io.BytesIO, tensors: dict[int, Callable[[], Any]]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: int) -> torch.Tensor:
        if pid not in self._made:
            self._made[pid] = self._tensors[pid]()
        return self._made[pid]


def _remade(tensor: Any) -> Callable[[], Any]:
    """Return what makes another tensor or storage like this one, and keeps this one not alive."""
    if isinstance(tensor, _STORAGES):
        kind, size = type(tensor), len(tensor)
        return lambda: kind(size)
    shape, dtype, needs_gradient = tensor.shape, tensor.dtype, tensor.requires_grad
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    values, is_parameter = known(tensor), isinstance(tensor, torch.nn.Parameter)
    values = None if values is None else values.clone()

    def make() -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype, device=device)
        if values is not None and isinstance(made, FakeTensor):
            know(made, values.clone())
        return torch.nn.Parameter(made, needs_gradient) if is_parameter else made.requires_grad_(needs_gradient)

    return make


class _Saved:
    """A file of safetensors that the program has saved in this run; its tensors by name."""

    def __init__(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
        self._tensors, self._metadata = tensors, metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            from safetensors import SafetensorError

            raise SafetensorError(f"File does not contain tensor {name}")
        return self._tensors[name]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._tensors)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self.get_tensor(name))


class _Slice:
    """A tensor in such a file."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self._tensor[part]

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the dtype by its name in the file, such as "BF16"."""
        from safetensors.torch import _TYPES

        return next(name for name, dtype in _TYPES.items() if dtype is self._tensor.dtype)


class _File:
    """A file of safetensors that was there before, or a tensor in one. What is read of it goes to the device that is
    played."""

    def __init__(self, native: Any, device: Any) -> None:
        self._native, self._device = native, device

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
        with away():
            found = read(*args)
        if type(found).__name__ == "PySafeSlice":
            return _File(found, self._device)
        return _on(self._device, found)


def _on(device: Any, value: Any) -> Any:
    """Return a value with its tensors on a device, or where they are for None."""
    return value if device is None else pytree.tree_map_only(torch.Tensor, lambda one: one.to(device), value)


def _line_in(path: str) -> bytes | None:
    """Return the line of ours with which a file begins; None for any other file, and where none is."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        found = file.read(len(_LINE) + 20)
        return found if found.startswith(_LINE) else None
    return None


class Checkpoints:
    """What the program has saved in this run."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._saved: list[tuple[bytes, dict[int, Callable[[], Any]]]] = []
        self._lines: set[str] = set()
        """The files in which a line of ours was put. The program may have put another file there since."""
        self._hidden: dict[str, bytes] = {}
        """The lines for files of the program, which stay as they are."""
        self.names: set[str] = set()
        """The files that the program would have written."""

    def patch(self, patches: Patches) -> None:
        """Put functions that save and load without values in the place of those that do."""
        patches.put(torch, "load", self._load(torch.load))
        patches.put(torch, "save", lambda obj, f, *_, **__: self._keep(obj, f))
        if importlib.util.find_spec("safetensors") is not None:
            self._patch_safetensors(patches)
        for module, names in _COPYING.items():
            for name in names:
                patches.put(module, name, self._copying(getattr(module, name), name.startswith("copy")))

    def _patch_safetensors(self, patches: Patches) -> None:
        import safetensors
        import safetensors.torch

        native, lies_on = safetensors.safe_open, self._devices.lies_on

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> _File | _Saved:
            if (saved := self._saved_at(filename)) is not None:
                return _Saved(*self._made(saved, lies_on(device)))
            return _File(native(filename, framework, "cpu", **options), lies_on(device))

        def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: dict[str, str] | None = None) -> None:
            self._keep((tensors, metadata), filename)

        for module in (safetensors, safetensors.torch):
            patches.put(module, "safe_open", safe_open)
        patches.put(safetensors.torch, "save_file", save_file)

    def _keep(self, obj: Any, f: Any) -> None:
        """Keep what the program saves, and write a line in its place."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(obj)
        line = _LINE + str(len(self._saved)).encode()
        self._saved.append((buffer.getvalue(), {number: _remade(one) for number, one in pickler.tensors.items()}))
        if isinstance(f, (str, os.PathLike)):
            self.names.add(str(f))
            self._put(os.path.realpath(f), line)
        else:
            self.names.add(str(getattr(f, "name", "a file")))
            f.write(line)

    def _put(self, path: str, line: bytes) -> None:
        if os.path.lexists(path) and (path not in self._lines or _line_in(path) is None):
            self._hidden[path] = line
            return
        with open(path, "wb") as file:
            file.write(line)
        self._lines.add(path)
        self._hidden.pop(path, None)

    def _line_at(self, path: Any) -> bytes | None:
        """Return the line of ours for a file; None for any other."""
        name = os.path.realpath(path)
        return self._hidden[name] if name in self._hidden else _line_in(name)

    def _saved_at(self, f: Any) -> int | None:
        """Return the number of what this run has saved in a file; None for any other file."""
        if isinstance(f, (str, os.PathLike)):
            line = self._line_at(f)
        else:
            begin = f.tell()
            line = f.read(len(_LINE) + 20)
            f.seek(begin)
        number = line.removeprefix(_LINE) if line is not None and line.startswith(_LINE) else b""
        return int(number) if number.isdigit() and int(number) < len(self._saved) else None

    def _made(self, saved: int, device: Any) -> Any:
        """Return a copy of what was saved; its tensors on a device, or where they were for None."""
        pickled, tensors = self._saved[saved]
        return _on(device, _Unpickler(io.BytesIO(pickled), tensors).load())

    def _load(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
            device = None
            if isinstance(map_location, (str, torch.device)):
                device = self._devices.lies_on(map_location)
            if (saved := self._saved_at(f)) is not None:
                return self._made(saved, device)
            return _on(device if device != torch.device("cpu") else None, native(f, "cpu", *args, **options))

        return load

    def _copying(self, native: Callable[..., Any], stays: bool) -> Callable[..., Any]:
        """Return a function that puts no file of ours in the place of one of the program. The first one `stays`, or
        goes."""

        def copy(src: Any, dst: Any, *args: Any, **options: Any) -> Any:
            line = self._line_at(src) if isinstance(src, (str, os.PathLike)) and not os.path.isdir(src) else None
            if line is None:
                return native(src, dst, *args, **options)
            path = os.path.join(dst, os.path.basename(src)) if os.path.isdir(dst) else dst
            self.names.add(str(path))
            self._put(os.path.realpath(path), line)
            if not stays and self._hidden.pop(os.path.realpath(src), None) is None:
                os.unlink(src)
                self._lines.discard(os.path.realpath(src))
            return path

        return copy

    def end(self) -> None:
        for path in self._lines:
            if _line_in(path) is not None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
