"""A device without hardware: its tensors say that they are on it, and its operators compute on the CPU.

It is a backend of PrivateUse1 as an accelerator is: plain tensors (no subclass), operators below autograd, views that
alias, a generator, and an engine thread of its own in which backward runs. Its addresses lead nowhere: whoever reads a
tensor's memory as the CPU's crashes, as on a GPU. `arrive()` must come before the first backward of the process, for
the engine counts its devices then.

What it lacks: pinned and sparse memory, streams, memory that can grow for all tensors that share it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.device import kernels
from tests.device.kernels import NAME, waited

__all__ = ["NAME", "arrive", "waited"]

C: Any = torch._C


# -- autocast ----------------------------------------------------------------------------------------------------------

_LOWER = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "conv1d", "conv2d", "scaled_dot_product_attention")
_HIGHER = ("exp", "log", "pow.Tensor_Scalar", "softmax.int", "log_softmax.int", "layer_norm", "sum", "mse_loss")


def _autocast(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    """An operator that casts what it is given, as those of other devices do."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        fits = tensor.device.type == NAME and tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype()) if fits else tensor

    def casting(*args: Any, **kwargs: Any) -> Any:
        with C._ExcludeDispatchKeyGuard(C.DispatchKeySet(C.DispatchKey.AutocastPrivateUse1)):
            given = (tree_map_only(torch.Tensor, cast, value) for value in args)
            return op(*given, **{name: tree_map_only(torch.Tensor, cast, value) for name, value in kwargs.items()})

    return casting


# -- what PyTorch asks a device ----------------------------------------------------------------------------------------


class _Module:
    """`torch.sham`."""

    _initialized = True

    class device(contextlib.nullcontext):
        """There is one device only."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        """Nothing runs on by itself."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        kernels.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return kernels.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        kernels.generator.set_state(state)


_raised: list[BaseException] = []
"""Errors on their way out of a node."""


class _Guard(C._acc.DeviceGuard):
    """PyTorch asks for the device's type while an error of Python's leaves a node: of a hook, of an unpack. To run
    Python then, without looking at the error, ends the process (torch 2.13)."""

    def type_(self) -> Any:
        try:
            "one".__getitem__(-1)  # raises what is on its way, as -1 is what a failure looks like
        except BaseException as error:
            _raised.append(error)
        return C._autograd.DeviceType.PrivateUse1


class _Engine:
    """PyTorch's engine, from which those errors come again."""

    native: Any = torch.autograd.Variable._execution_engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.native.run_backward(*args, **kwargs)
        except SystemError:
            if not _raised:
                raise
        raise _raised.pop()

    # Its frame is one of PyTorch's, the one that calls the engine, and no line of the program.
    run_backward.__code__ = run_backward.__code__.replace(
        co_filename=torch.autograd.graph.__file__, co_name=torch.autograd.graph._engine_run_backward.__name__
    )


_libraries: list[Any] = []


def _register(namespace: str, kernels: Iterable[tuple[str, Callable[..., Any]]], key: str = "PrivateUse1") -> None:
    library: Any = torch.library.Library(namespace, "IMPL")
    _libraries.append(library)
    for name, kernel in kernels:
        library.impl(name, kernel, key)


def has_arrived() -> bool:
    """Whether PyTorch knows the device."""
    return bool(_libraries)


def arrive() -> str:
    """Make the device known to PyTorch, for good; returns its name."""
    if has_arrived():
        return NAME
    _setup_privateuseone_for_python_backend(NAME, _Module(), device_guard=_Guard())
    anything: Any = torch.library.Library("_", "IMPL")
    _libraries.append(anything)
    anything.fallback(kernels.compute, "PrivateUse1")
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _register("aten", kernels.KERNELS.items())
    lower, higher = functools.partial(torch.get_autocast_dtype, NAME), lambda: torch.float32
    casts = [(name, _autocast(kernels.overload(name), lower)) for name in _LOWER]
    casts += [(name, _autocast(kernels.overload(name), higher)) for name in _HIGHER]
    _register("aten", casts, "AutocastPrivateUse1")
    torch.autograd.Variable._execution_engine = _Engine()
    torch.UntypedStorage.clone = kernels.cloned  # type: ignore[method-assign]
    torch.UntypedStorage.resizable = kernels.is_resizable  # type: ignore[method-assign]
    return NAME
