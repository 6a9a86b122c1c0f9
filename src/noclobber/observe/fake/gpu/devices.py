"""Plays the device that a program asks for. Its tensors lie on a further CPU, `cpu:1` for `cuda:0`: each build has the
CPU's part of autograd, and a fake tensor of a device that PyTorch was built without ends the process (torch 2.13). The
program reads `cuda:0`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from noclobber.model.fake import Gpu
from noclobber.observe.fake import values
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.fake_tensors import DEVICE, FakeTensor

_FULL = {
    "softmax", "log_softmax", "cross_entropy", "nll_loss", "cross_entropy_loss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "layer_norm", "group_norm", "rms_norm", "norm", "cosine_similarity",
    "cosine_embedding_loss", "poisson_nll_loss", "exp", "expm1", "log", "log1p",
    "binary_cross_entropy_with_logits", "log2", "log10", "pow", "__pow__", "rsqrt", "reciprocal", "softplus",
    "sum", "prod", "cumsum", "cumprod", "cdist", "erfinv", "acos", "asin", "cosh", "sinh", "tan", "renorm",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
}  # fmt: skip
"""Functions that autocast runs in float32 on a GPU. The CPU's autocast leaves most of them as they are."""
HALVES = (torch.float16, torch.bfloat16)


class Devices:
    """What stands for what: `played` is the kind of device that is played, "cuda"."""

    def __init__(self, gpu: Gpu) -> None:
        self.played = gpu.kind
        self.count = gpu.count
        self.current = 0
        self.inside = 0
        """More than 0 while PyTorch works on shapes: then a tensor says where it lies, and not what is played."""

    def lies_on(self, device: Any) -> Any:
        """Return what stands for a device that the program names. Raises RuntimeError for one that is not there."""
        if self.count == 0:
            return device
        if isinstance(device, int) and not isinstance(device, bool):
            device = f"{self.played}:{device}"
        if isinstance(device, str) and not device.startswith(self.played):
            return device
        try:
            named = torch.device(device)
        except (RuntimeError, TypeError):
            return device  # PyTorch says what is wrong with it
        if named.type != self.played:
            return device
        index = self.current if named.index is None else named.index
        if index >= self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal\n{self.count} of {self.played} are played")
        return torch.device("cpu", index + 1)

    def shown(self, device: torch.device) -> torch.device:
        """Return the device that the program sees for one that a tensor lies on."""
        return torch.device(self.played, device.index - 1) if is_played(device) else device

    def is_inside(self, tensor: FakeTensor) -> bool:
        """Return True while PyTorch works on shapes."""
        return self.inside > 0 or tensor.fake_mode.in_kernel_invocation


_NO_MEMORY = "its data is not allocated yet"
"""What PyTorch says where a tensor has no bytes (torch 2.13, c10/core/TensorImpl.h)."""


def is_played(device: torch.device) -> bool:
    """Return True for a device that stands for one that is not here."""
    return device.type == "cpu" and bool(device.index)


class Playing(TorchFunctionMode):
    """Puts the device that stands for a played one into the arguments of each function of torch. `explain` says of a
    function that it needs values."""

    def __init__(self, devices: Devices, explain: Callable[[str, BaseException], None]) -> None:
        super().__init__()
        self._devices, self._explain = devices, explain

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if options.get("device") is not None:
            options = {**options, "device": self._devices.lies_on(options["device"])}
        name = getattr(func, "__name__", "")
        special = _SPECIAL.get(name)
        if special is not None and (answer := special(self._devices, func, args, options)) is not NotImplemented:
            return answer
        if name in _FULL and torch.is_autocast_enabled(self._devices.played):
            args = [_full(one) for one in args]
        try:
            return func(*args, **options)
        except RuntimeError as error:
            if _NO_MEMORY in str(error):  # a function in C++ reads it, and no operator
                self._explain(resolve_name(func) or name, error)
            raise


def _full(argument: Any) -> Any:
    is_half = isinstance(argument, FakeTensor) and argument.dtype in HALVES and is_played(argument.fake_device)
    return argument.float() if is_half else argument


def _to(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    if len(args) > 1 and not isinstance(args[1], (torch.Tensor, torch.dtype)):
        return func(args[0], devices.lies_on(args[1]), *args[2:], **options)
    return NotImplemented


def _named(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return `torch.device(0)`, which names the device that is played."""
    if devices.count and len(args) == 1 and isinstance(args[0], int) and not options:
        return func(devices.played, args[0])
    return NotImplemented


def _cuda(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    if devices.played != func.__name__ or not isinstance(args[0], torch.Tensor):
        return NotImplemented
    device = args[1] if len(args) > 1 else options.get("device")
    blocking = bool(options.get("non_blocking", False))
    return args[0].to(devices.lies_on(devices.played if device is None else device), non_blocking=blocking)


def _numbers(data: Any) -> Any:
    """Return a list with the values of the fake tensors in it, which PyTorch would read from their memory."""
    if isinstance(data, (list, tuple)):
        return [_numbers(one) for one in data]
    return data.tolist() if isinstance(data, FakeTensor) else data


def _of_numbers(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Make a tensor of Python's numbers on the CPU, and move it: PyTorch itself leaves it there (torch 2.13)."""
    device, options = options.get("device"), dict(options)
    args = [_numbers(one) if isinstance(one, (list, tuple)) else one for one in args]
    if func.__name__ == "new_tensor" and isinstance(args[0], FakeTensor):
        device = args[0].fake_device if device is None else device
        options.setdefault("dtype", args[0].dtype)
        func, args = torch.tensor, args[1:]
    if not isinstance(device, torch.device) or not is_played(device):
        return func(*args, **options) if device is None else func(*args, **{**options, "device": device})
    options.pop("device", None)
    needs_gradient = options.pop("requires_grad", False)
    return func(*args, **options).to(device).requires_grad_(needs_gradient)


def _assigned(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Assign to `.data`: PyTorch leaves the tensor where it was, and what is known of it (torch 2.13)."""
    if func.__self__ is not torch.Tensor.data or not all(isinstance(one, FakeTensor) for one in args):
        return NotImplemented
    func(*args)
    tensor, data = args
    tensor.fake_device = data.fake_device
    values.share(tensor, data)


def _ctc_loss(devices: Devices, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Move the lengths to the device of the chances: PyTorch reads them in C++ where they lie on the CPU."""
    if not isinstance(args[0], FakeTensor):
        return NotImplemented
    device = args[0].fake_device
    args = [args[0], *(one.to(device) if isinstance(one, torch.Tensor) else one for one in args[1:])]
    named = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in options.items()}
    return func(*args, **named)


_SPECIAL: dict[str, Callable[[Devices, Any, Sequence[Any], dict[str, Any]], Any]] = {
    "__set__": _assigned,
    "to": _to,
    "device": _named,
    "cuda": _cuda,
    "xpu": _cuda,
    "tensor": _of_numbers,
    "as_tensor": _of_numbers,
    "asarray": _of_numbers,
    "new_tensor": _of_numbers,
    "_pad_packed_sequence": lambda _, __, args, options: (
        values.padded(*args, **options) if isinstance(args[0], FakeTensor) else NotImplemented
    ),
    "ctc_loss": _ctc_loss,
    "pin_memory": lambda _, __, args, ___: args[0],
    "share_memory_": lambda _, __, args, ___: args[0],
}


def patch(patches: Patches, devices: Devices, asked: values.Asked) -> None:
    """Let fake tensors say where the program thinks that they lie, and hand out stand-ins for their values."""
    native_ptr: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.data_ptr

    def device(self: FakeTensor) -> torch.device:
        lies: torch.device = DEVICE.fget(self)
        return lies if devices.is_inside(self) else devices.shown(lies)

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        if not force and self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if not force and is_played(self.fake_device):
            raise TypeError(
                f"can't convert {devices.shown(self.fake_device)} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        if (known := values.known(self)) is not None:
            with modes.aside():
                return known.numpy()
        asked.note("numpy")
        kind = np.dtype(str(self.dtype).partition(".")[2])  # bfloat16 has none: TypeError, as without noclobber
        made = np.zeros(tuple(self.shape), kind)
        if self.numel() <= values.MOST:
            made[...] = values.guess(self)
        return made

    def tolist(self: FakeTensor) -> Any:
        if (known := values.known(self)) is not None:
            with modes.aside():
                return known.tolist()
        asked.note("tolist")
        made: Any = values.guess(self)
        for size in reversed(self.shape):
            made = [made] * size if not isinstance(made, list) else [[*made] for _ in range(size)]
        return made

    def in_format(self: FakeTensor, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta and type(self) is FakeTensor:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def data_ptr(self: FakeTensor) -> int:
        # It is not 0, as programs compare addresses to find tensors that share memory. A deep copy asks whether there
        # is any memory to copy (torch 2.13, Tensor.__deepcopy__).
        if sys._getframe(1).f_code is _DEEPCOPY:
            return 0
        begin: int = storages.storage(self)._cdata
        return begin + int(self.storage_offset()) * self.itemsize

    def storage_ptr(self: torch.UntypedStorage) -> int:
        return self._cdata if self.device.type == "meta" else native_ptr(self)

    functions = private.lookup("_C._nn")
    parse: Callable[..., Any] = functions._parse_to

    def parse_to(*args: Any, **options: Any) -> Any:
        """Read what `Module.to` is given, also the number of a device that is played."""
        if devices.count and args and type(args[0]) is int:
            args = (torch.device(devices.played, args[0]), *args[1:])
        return parse(*args, **options)

    patches.put(functions, "_parse_to", parse_to)
    answers: dict[str, Any] = {
        "numpy": numpy,
        "tolist": tolist,
        "__format__": in_format,
        "data_ptr": data_ptr,
        "record_stream": lambda self, stream: None,
    }
    for name, answer in answers.items():
        patches.put(FakeTensor, name, answer)
    say_played(patches, FakeTensor, property(device, DEVICE.fset))
    patches.put(torch.UntypedStorage, "data_ptr", storage_ptr)


def say_played(patches: Patches, kind: type[torch.Tensor], device: property) -> None:
    """Let tensors of a class say the device that is played, which `device` returns."""

    def is_on(name: str) -> property:
        return property(lambda self: self.device.type == name)

    def get_device(self: torch.Tensor) -> int:
        index: int | None = self.device.index
        return -1 if self.device.type == "cpu" or index is None else index

    answers = {"device": device, "is_cuda": is_on("cuda"), "is_cpu": is_on("cpu"), "is_xpu": is_on("xpu")}
    for name, answer in {**answers, "get_device": get_device}.items():
        patches.put(kind, name, answer)


_DEEPCOPY = torch.Tensor.__deepcopy__.__code__ if isinstance(torch.Tensor.__deepcopy__, FunctionType) else None
_NAMED = re.compile(r"\bcpu:(\d+)\b")


def in_words(devices: Devices, text: str) -> str:
    """Return what PyTorch says, with the devices that the program knows."""
    return _NAMED.sub(lambda found: f"{devices.played}:{int(found[1]) - 1}" if int(found[1]) else found[0], text)
