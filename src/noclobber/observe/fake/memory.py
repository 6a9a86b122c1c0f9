"""The bytes of all storages of fake tensors, device by device, and what they belong to when they are the most."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from noclobber.observe.core.boundary import Way
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor
from noclobber.observe.torch_api.tensors.local_numbers import parts

KINDS = ("parameters", "gradients", "optimizer state", "activations")


@dataclass(slots=True, eq=False)
class _Live:
    """A storage that is there. `kind` is learned later, and then also the peak knows it."""

    bytes: int
    device: torch.device
    kind: str = "activations"
    reference: weakref.ref[torch.UntypedStorage] | None = None


class Memory:
    """Follows each storage from its first tensor to its end."""

    def __init__(self) -> None:
        self._live: dict[int, _Live] = {}
        self._now: dict[torch.device, int] = {}
        self._most: dict[torch.device, int] = {}
        self._peaks: dict[torch.device, list[_Live]] = {}
        self._rising: set[torch.device] = set()

    def now(self, device: torch.device) -> int:
        """Return the bytes on a device at present."""
        return self._now.get(device, 0)

    def most(self, device: torch.device) -> int:
        """Return the most bytes that were on a device."""
        return self._most.get(device, 0)

    def made(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor, if it is new."""
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            return
        if tensor.fake_device.type == "meta":  # a tensor that has no memory outside of a run without values either
            return
        storage = storages.storage(tensor)
        key = storage._cdata
        known = self._live.get(key)
        size = storage.nbytes()
        if known is not None:
            self._resized(known, size)
            return
        one = _Live(size, tensor.fake_device)
        one.reference = weakref.ref(storage, lambda _: self._gone(key))
        self._live[key] = one
        self._add(one.device, size)

    def patch(self, patches: Patches) -> None:
        """Count a storage that the program resizes, as FSDP does: no operator tells of it."""
        native = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            native(storage, size)
            if (known := self._live.get(storage._cdata)) is not None:
                self._resized(known, storage.nbytes())
            return storage

        patches.put(torch.UntypedStorage, "resize_", resize_)

    def _resized(self, known: _Live, size: int) -> None:
        self._add(known.device, size - known.bytes)
        known.bytes = size

    def _add(self, device: torch.device, size: int) -> None:
        if size < 0 and device in self._rising:
            self._write_down(device)
        self._now[device] = now = self._now.get(device, 0) + size
        if now > self._most.get(device, 0):
            self._most[device] = now
            self._rising.add(device)

    def _gone(self, key: int) -> None:
        one = self._live.get(key)
        if one is not None:
            self._add(one.device, -one.bytes)
            del self._live[key]

    def _write_down(self, device: torch.device) -> None:
        self._peaks[device] = [one for one in self._live.values() if one.device == device]
        self._rising.discard(device)

    def learn(self, kind: str, tensors: Iterable[Any]) -> None:
        """Learn what the storages of tensors belong to, and those that tensors hold here of what ranks share."""
        waiting = list(tensors)
        while waiting:
            tensor = waiting.pop()
            if isinstance(tensor, torch.Tensor):
                waiting += parts(tensor)
            if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
                continue
            if (one := self._live.get(storages.storage(tensor)._cdata)) is not None:
                one.kind = kind

    def peaks(self) -> dict[torch.device, dict[str, int]]:
        """Return for each device the bytes of each kind when they were the most."""
        for device in list(self._rising):
            self._write_down(device)
        found: dict[torch.device, dict[str, int]] = {}
        for device, at_peak in self._peaks.items():
            sums = dict.fromkeys(KINDS, 0)
            for one in at_peak:
                sums[one.kind] += one.bytes
            found[device] = sums
        return found


Kept = tuple[dict[str, Any], dict[str, Any]]


def patch_modules(patches: Patches, memory: Memory, way: Way, *, keeps: bool) -> Callable[[], None]:
    """Tell the memory which tensors are parameters of modules: `model.to("cuda")` has them on two devices. Return what
    ends that. If it `keeps`, modules then get back the tensors that they had before they were moved."""
    known: weakref.WeakKeyDictionary[torch.nn.Module, Kept] = weakref.WeakKeyDictionary()
    learn = way.entry(lambda tensors: memory.learn("parameters", tensors))
    native: Callable[..., Any] = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
        if keeps and self not in known:
            known[self] = (dict(self._parameters), dict(self._buffers))
        learn(self._parameters.values())
        moved: torch.nn.Module = native(self, *args, **options)
        learn(self._parameters.values())
        return moved

    patches.put(torch.nn.Module, "_apply", _apply)
    handle = register_module_parameter_registration_hook(lambda _, __, one: learn([one]))

    def put_back() -> None:
        handle.remove()
        for module, (parameters, buffers) in known.items():
            module._parameters.update(parameters)
            module._buffers.update(buffers)

    return put_back
