"""A device without hardware: its tensors say that they are on it, and its operators compute on the CPU.

It is a backend of PrivateUse1 as an accelerator is: plain tensors (no subclass), operators below autograd, views that
alias, a generator, and an engine thread of its own in which backward runs. Its addresses lead nowhere: whoever reads a
tensor's memory as the CPU's crashes, as on a GPU. `arrive()` must come before the first backward of the process, for
the engine counts its devices then.

What it lacks: pinned and sparse memory, streams, memory that can grow for all tensors that share it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sham"
FAR = 1 << 60
"""Added to every address: no memory is there."""
waited: list[str] = []
"""What made the program wait for the device: copies to the CPU and numbers read, one entry each."""

C: Any = torch._C
ATEN = torch.ops.aten
_MOVES_ONLY = C.DispatchKeySet(C.DispatchKey.CPU)
"""The CPU's kernels for views look at no bytes, and make a view on whatever device."""
_FACTORIES = C.DispatchKeySet(C.DispatchKey.BackendSelect)
_ABOVE = C._dispatch_keyset_full() - C._dispatch_keyset_full_after(C.DispatchKey.ADInplaceOrView)


# -- memory: one block that both sides know, through DLPack ------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    """DLPack's description of a tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_described = ctypes.pythonapi.PyCapsule_GetPointer
_described.restype, _described.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_CPU, _EXTENSION = 1, 12


def _shared(tensor: torch.Tensor, device_type: int, further: int) -> torch.Tensor:
    """The same memory as a tensor of the other side, which holds this one."""
    capsule = C._to_dlpack(tensor)
    description = _DLTensor.from_address(_described(capsule, b"dltensor"))
    description.device_type = device_type
    if description.data:
        description.data += further
    for dimension, stride in enumerate(tensor.stride()):  # those of a dimension of one element get lost on the way
        description.strides[dimension] = stride
    shared: torch.Tensor = C._from_dlpack(capsule)
    return shared


def _to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A new result of the CPU as a tensor of the device."""
    return _shared(tensor.resolve_conj().resolve_neg(), _EXTENSION, FAR)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor of the device, for the CPU to compute with; other tensors as they are."""
    if tensor.device.type != NAME:
        return tensor
    plain = tensor
    for marked, unmark in ((plain.is_conj(), torch._conj), (plain.is_neg(), torch._neg_view)):
        plain = unmark(plain) if marked else plain
    host = _shared(plain, _CPU, -FAR)
    host = torch._conj(host) if tensor.is_conj() else host
    return torch._neg_view(host) if tensor.is_neg() else host


# -- operators ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opaque() -> Iterator[None]:
    """As inside a compiled kernel: no autograd, no modes, no key that somebody listens on."""
    with C._ForceDispatchKeyGuard(_FACTORIES, _ABOVE):
        yield


class _Plan(NamedTuple):
    """What an operator's schema says."""

    is_view: bool
    out: tuple[str, ...]
    generator: bool
    random: bool
    tensors: tuple[int, ...]
    """Where it takes tensors."""


@functools.cache
def _plan(op: Any) -> _Plan:
    schema = op._schema
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    names = [one.name for one in schema.arguments]
    out = tuple(one.name for one in schema.arguments if one.is_out)
    random = torch.Tag.nondeterministic_seeded in op.tags
    tensors = tuple(at for at, one in enumerate(schema.arguments) if str(one.type) == "Tensor")
    return _Plan(views, out, "generator" in names, random, tensors)


def _called(op: Any, plan: _Plan, args: Any, kwargs: Any) -> Any:
    """A number that PyTorch wraps as a tensor comes to Python as a number: by its name, the operator takes that too."""
    wrapped = any(at < len(args) and isinstance(args[at], (int, float, complex)) for at in plan.tensors)
    return (op._overloadpacket if wrapped else op)(*args, **kwargs)


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator: on the CPU, with the device's memory."""
    plan = _plan(op)
    with _opaque():
        if plan.is_view:
            return op.redispatch(_MOVES_ONLY, *args, **kwargs)
        hosts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def host(tensor: torch.Tensor) -> torch.Tensor:
            made = _to_host(tensor)
            hosts[id(made)] = made, tensor
            return made

        def back(tensor: torch.Tensor) -> torch.Tensor:
            known = hosts.get(id(tensor))
            return _to_device(tensor) if known is None else known[1]

        args, kwargs = tree_map_only(torch.Tensor, host, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with _drawing(plan, kwargs):
            try:
                result = _called(op, plan, args, kwargs)
            except RuntimeError as error:
                if "not resizable" not in str(error):
                    raise
                result = _into_larger(op, plan, args, kwargs, hosts)
        if op is ATEN._local_scalar_dense.default:
            waited.append("item")
        return tree_map_only(torch.Tensor, back, result)


def _into_larger(op: Any, plan: _Plan, args: Any, kwargs: Any, hosts: dict[int, Any]) -> Any:
    """With outputs that the operator gives another size."""
    outputs = {name: hosts[id(kwargs[name])][1] for name in plan.out if isinstance(kwargs.get(name), torch.Tensor)}
    fresh = {name: _to_host(tensor).clone() for name, tensor in outputs.items()}
    result = op(*args, **kwargs | fresh)
    for name, made in fresh.items():
        tensor = outputs[name]
        if tensor.shape != made.shape:
            tensor.resize_(made.shape)
        _to_host(tensor).copy_(made)
        hosts[id(made)] = made, tensor
    return result


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """From the CPU, to it, or from one place of the device to another."""
    if target.device.type != NAME:
        waited.append("copy")
    with _opaque():
        _to_host(target).copy_(_to_host(source))
    return target


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
    with _opaque():
        return _to_device(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _zeros(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    """In place of what has no memory until it is asked for."""
    with _opaque():
        return _to_device(torch.zeros(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    with _opaque():
        return _to_device(torch.empty_strided(size, stride, dtype=dtype))


def _resized(tensor: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
    """What no longer fits gets memory of its own: what it shared stays with the others."""
    layout = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    with _opaque():
        storage = tensor.untyped_storage()
        if (tensor.storage_offset() + layout.numel()) * tensor.itemsize > storage.nbytes():
            more = torch.empty(layout.numel() + tensor.storage_offset(), dtype=tensor.dtype)
            if tensor.numel():
                more[tensor.storage_offset() :][: tensor.numel()].copy_(_to_host(tensor).reshape(-1))
            storage = _to_device(more).untyped_storage()
        move = ATEN.set_.source_Storage_storage_offset
        move.redispatch(_MOVES_ONLY, tensor, storage, tensor.storage_offset(), layout.shape, layout.stride())
    return tensor


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    with _opaque():
        nothing = _to_device(torch.empty(0, dtype=tensor.dtype))
        return ATEN.set_.source_Tensor.redispatch(_MOVES_ONLY, tensor, nothing)


def _moved(op: Any) -> Callable[..., Any]:
    def move(*args: Any, **kwargs: Any) -> Any:
        with _opaque():
            return op.redispatch(_MOVES_ONLY, *args, **kwargs)

    return move


def _convolved(*args: Any) -> Any:
    return _compute(ATEN.convolution.default, *args)


def _convolved_backward(gradient: Any, given: Any, weight: Any, *rest: Any) -> Any:
    *rest, mask = rest
    return _compute(ATEN.convolution_backward.default, gradient, given, weight, [weight.shape[0]], *rest, mask)


def _lstm_cell(given: Any, hidden: Any, before: Any, bias: Any = None, more_bias: Any = None) -> Any:
    """The fused cell that accelerators have; it keeps its gates for backward."""
    gates = given + hidden
    if bias is not None:
        gates = gates + bias + more_bias
    into, forget, new, out = gates.chunk(4, 1)
    into, forget, new, out = into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    cell = forget * before + into * new
    return out * cell.tanh(), cell, torch.cat([into, forget, new, out], 1)


def _lstm_cell_backward(of_hidden: Any, of_cell: Any, before: Any, cell: Any, gates: Any, has_bias: bool) -> Any:
    if of_hidden is None and of_cell is None:
        return None, None, None
    into, forget, new, out = gates.chunk(4, 1)
    shape, of_out = cell.tanh(), None
    of_out = torch.zeros_like(cell) if of_hidden is None else of_hidden * shape * out * (1 - out)
    of_cell = torch.zeros_like(cell) if of_cell is None else of_cell
    if of_hidden is not None:
        of_cell = of_cell + of_hidden * out * (1 - shape * shape)
    of_into, of_forget = of_cell * new * into * (1 - into), of_cell * before * forget * (1 - forget)
    of_gates = torch.cat([of_into, of_forget, of_cell * into * (1 - new * new), of_out], 1)
    return of_gates, of_cell * forget, of_gates.sum(0) if has_bias else torch.empty(0, device=NAME)


_native_clone = torch.UntypedStorage.clone


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """What copies a storage allocates it without an operator, and there is no allocator."""
    if storage.device.type != NAME:
        return _native_clone(storage)
    return torch.empty(storage.nbytes(), dtype=torch.uint8, device=NAME).untyped_storage().copy_(storage)


# -- random numbers ----------------------------------------------------------------------------------------------------

_generator = torch.Generator()


@contextlib.contextmanager
def _drawing(plan: _Plan, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draw from the device's generator."""
    if plan.generator and kwargs.get("generator") is None:
        kwargs["generator"] = _generator
    if not plan.random or plan.generator:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(_generator.get_state())
    try:
        yield
    finally:
        _generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


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
        _generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return _generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        _generator.set_state(state)


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
    queue_callback = native.queue_callback

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.native.run_backward(*args, **kwargs)
        except SystemError:
            if not _raised:
                raise
        raise _raised.pop()


_libraries: list[Any] = []


def _register(namespace: str, kernels: Iterable[tuple[str, Callable[..., Any]]], key: str = "PrivateUse1") -> None:
    library: Any = torch.library.Library(namespace, "IMPL")
    _libraries.append(library)
    for name, kernel in kernels:
        library.impl(name, kernel, key)


def arrive() -> str:
    """Make the device known to PyTorch, for good; returns its name."""
    if _libraries:
        return NAME
    _setup_privateuseone_for_python_backend(NAME, _Module(), device_guard=_Guard())
    anything: Any = torch.library.Library("_", "IMPL")
    _libraries.append(anything)
    anything.fallback(_compute, "PrivateUse1")
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    views = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
    sets = ("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor")
    _register("aten", ((name, _moved(_overload(name))) for name in (*views, *sets)))
    special = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_efficientzerotensor": _zeros,
        "copy_": _copied,
        "resize_": _resized,
        "set_": _emptied,
        "convolution_overrideable": _convolved,
        "convolution_backward_overrideable": _convolved_backward,
        "_thnn_fused_lstm_cell": _lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    }
    _register("aten", special.items())
    lower, higher = functools.partial(torch.get_autocast_dtype, NAME), lambda: torch.float32
    casts = [(name, _autocast(_overload(name), lower)) for name in _LOWER]
    casts += [(name, _autocast(_overload(name), higher)) for name in _HIGHER]
    _register("aten", casts, "AutocastPrivateUse1")
    torch.autograd.Variable._execution_engine = _Engine()
    torch.UntypedStorage.clone = _cloned  # type: ignore[method-assign]
    return NAME


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(ATEN, base), overload or "default")
