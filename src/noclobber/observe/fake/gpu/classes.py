"""`torch.cuda.FloatTensor` and its like, which older programs use as a class, as a function and by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noclobber.observe.fake.gpu.devices import Devices, is_played
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors.fake_tensors import FakeTensor

_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_NAMES = {f"{kind}Tensor": getattr(torch, f"{kind}Tensor").dtype for kind in _KINDS}


class TensorType:
    """The class of a dtype on the played device. An instance of it is made of sizes, or of numbers."""

    def __init__(self, name: str, devices: Devices) -> None:
        self.name, self.dtype, self._devices = name, _NAMES[name], devices

    def __repr__(self) -> str:
        return f"<class '{self}'>"

    def __str__(self) -> str:
        return f"torch.{self._devices.played}.{self.name}"

    def __call__(self, *args: Any) -> torch.Tensor:
        return self.of(getattr(torch, self.name)(*args))

    def __instancecheck__(self, tensor: object) -> bool:
        kind = self.dtype, self._devices.played
        return isinstance(tensor, torch.Tensor) and (tensor.dtype, tensor.device.type) == kind

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in this dtype, on the device where it is, or else on the current one."""
        return tensor.to(tensor.device if _is_there(tensor) else self._devices.played, self.dtype)


def _is_there(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and is_played(tensor.fake_device)


def patch(patches: Patches, devices: Devices) -> None:
    """Put such classes in the place of those of a GPU, and functions that take one in the place of PyTorch's."""
    module = getattr(torch, devices.played)
    types = {name: TensorType(name, devices) for name in _NAMES if hasattr(module, name)}
    named = {str(one): one for one in types.values()} | {f"torch.{name}": getattr(torch, name) for name in types}
    names = {one.dtype: str(one) for one in types.values()}
    change: Callable[..., Any] = torch.Tensor.type
    choose: Callable[[Any], None] = torch.set_default_tensor_type

    def of_name(asked: Any) -> Any:
        return named.get(asked, asked) if isinstance(asked, str) else asked

    def type(self: torch.Tensor, dtype: Any = None, *args: Any, **options: Any) -> Any:
        asked = of_name(dtype)
        if isinstance(asked, TensorType):
            return asked.of(self)
        if _is_there(self) and dtype is None and not options:
            return names[self.dtype]
        if _is_there(self) and asked in named.values():  # a class of the CPU
            return self.to("cpu", asked.dtype)
        return change(self, dtype, *args, **options)

    def set_default_tensor_type(t: Any) -> None:
        if not isinstance(asked := of_name(t), TensorType):
            choose(t)
            return
        torch.set_default_dtype(asked.dtype)
        torch.set_default_device(devices.played)

    for name, one in types.items():
        patches.put(module, name, one)
    patches.put(torch.Tensor, "type", type)
    patches.put(torch, "set_default_tensor_type", set_default_tensor_type)
