"""The operators of the sham device (sham.py), and its memory: each computes on the CPU with the bytes of the device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

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
_storage: Callable[[torch.Tensor], torch.UntypedStorage] = C.TensorBase.untyped_storage  # the method may be watched
_SET = ATEN.set_.source_Storage_storage_offset


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


class _Host:
    """The memory of the device as the CPU sees it, for one operator: what shares memory there does so here."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the device, for the CPU to compute with; others as they are."""
        if tensor.device.type != NAME:
            return tensor
        made: Any = torch.empty(0, dtype=tensor.dtype)
        made.set_(self._storage(tensor), tensor.storage_offset(), tensor.size(), tensor.stride())
        made = torch._conj(made) if tensor.is_conj() else made
        made = torch._neg_view(made) if tensor.is_neg() else made
        self._known[id(made)] = made, tensor
        return made

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        storage = _storage(tensor)
        if storage._cdata not in self._storages:
            size = storage.nbytes()
            whole = _SET.redispatch(_MOVES_ONLY, _to_device(torch.empty(0, dtype=torch.uint8)), storage, 0, [size], [1])
            self._storages[storage._cdata] = _storage(_shared(whole, _CPU, -FAR))
        return self._storages[storage._cdata]

    def stands_for(self, made: torch.Tensor, tensor: torch.Tensor) -> None:
        """A tensor of the CPU is what a tensor of the device has become."""
        self._known[id(made)] = made, tensor

    def back(self, made: torch.Tensor) -> torch.Tensor:
        """What an operator returned, on the device: an argument itself, or a new tensor."""
        known = self._known.get(id(made))
        return _to_device(made) if known is None else known[1]

    def original(self, made: torch.Tensor) -> torch.Tensor:
        """The tensor of the device that one of the CPU was made of."""
        return self._known[id(made)][1]


# -- operators ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opaque() -> Iterator[None]:
    """As inside a compiled kernel: no autograd, no modes, no subclasses, no key that somebody listens on."""
    with C._ForceDispatchKeyGuard(_FACTORIES, _ABOVE), C.DisableTorchFunctionSubclass():
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


def compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator: on the CPU, with the device's memory."""
    plan, host = _plan(op), _Host()
    with _opaque():
        if plan.is_view:
            return op.redispatch(_MOVES_ONLY, *args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, host.tensor, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with _drawing(plan, kwargs):
            try:
                result = _called(op, plan, args, kwargs)
            except RuntimeError as error:
                if "not resizable" not in str(error):
                    raise
                result = _into_larger(op, plan, args, kwargs, host)
        if op is ATEN._local_scalar_dense.default:
            waited.append("item")
        return tree_map_only(torch.Tensor, host.back, result)


def _into_larger(op: Any, plan: _Plan, args: Any, kwargs: Any, host: _Host) -> Any:
    """With outputs that the operator gives another size."""
    outputs = {name: host.original(kwargs[name]) for name in plan.out if isinstance(kwargs.get(name), torch.Tensor)}
    fresh = {name: host.tensor(tensor).clone() for name, tensor in outputs.items()}
    result = op(*args, **kwargs | fresh)
    for name, made in fresh.items():
        if outputs[name].shape != made.shape:
            outputs[name].resize_(made.shape)
        _Host().tensor(outputs[name]).copy_(made)
        host.stands_for(made, outputs[name])
    return result


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """From the CPU, to it, or from one place of the device to another."""
    if target.device.type != NAME:
        waited.append("copy")
    host = _Host()
    with _opaque():
        host.tensor(target).copy_(host.tensor(source))
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
        storage = _storage(tensor)
        if (tensor.storage_offset() + layout.numel()) * tensor.itemsize > storage.nbytes():
            more = torch.empty(layout.numel() + tensor.storage_offset(), dtype=tensor.dtype)
            if tensor.numel():
                more[tensor.storage_offset() :][: tensor.numel()].copy_(_Host().tensor(tensor).reshape(-1))
            storage = _storage(_to_device(more))
        _SET.redispatch(_MOVES_ONLY, tensor, storage, tensor.storage_offset(), layout.shape, layout.stride())
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
    return compute(ATEN.convolution.default, *args)


def _convolved_backward(gradient: Any, given: Any, weight: Any, *rest: Any) -> Any:
    *rest, mask = rest
    return compute(ATEN.convolution_backward.default, gradient, given, weight, [weight.shape[0]], *rest, mask)


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


def cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """What copies a storage allocates it without an operator, and there is no allocator."""
    if storage.device.type != NAME:
        return _native_clone(storage)
    return _storage(torch.empty(storage.nbytes(), dtype=torch.uint8, device=NAME)).copy_(storage)


def is_resizable(storage: torch.UntypedStorage) -> bool:
    """As storages of an accelerator are, whose memory is torch's own. Here it came in through DLPack."""
    return storage.device.type == NAME or bool(C.StorageBase.resizable(storage))


def _gru_cell(given: Any, hidden: Any, before: Any, bias: Any = None, more_bias: Any = None) -> Any:
    if bias is not None:
        given, hidden = given + bias, hidden + more_bias
    (reset, update, new), (of_reset, of_update, of_new) = given.chunk(3, 1), hidden.chunk(3, 1)
    reset, update = (reset + of_reset).sigmoid(), (update + of_update).sigmoid()
    new = (new + reset * of_new).tanh()
    return (before - new) * update + new, torch.cat([reset, update, new, before, of_new], 1)


def _gru_cell_backward(gradient: Any, gates: Any, has_bias: bool) -> Any:
    reset, update, new, before, of_new = gates.chunk(5, 1)
    for_new = gradient * (1 - update) * (1 - new * new)
    for_update = gradient * (before - new) * update * (1 - update)
    for_reset = for_new * of_new * reset * (1 - reset)
    of_given = torch.cat([for_reset, for_update, for_new], 1)
    of_hidden = torch.cat([for_reset, for_update, for_new * reset], 1)
    biases = (of_given.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_given, of_hidden, gradient * update, *biases


# -- random numbers ----------------------------------------------------------------------------------------------------

generator = torch.Generator()


@contextlib.contextmanager
def _drawing(plan: _Plan, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draw from the device's generator."""
    if plan.generator and kwargs.get("generator") is None:
        kwargs["generator"] = generator
    if not plan.random or plan.generator:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


# -- all of them -------------------------------------------------------------------------------------------------------


def overload(name: str) -> Any:
    """The operator of a name: "add_.Tensor"."""
    base, _, rest = name.partition(".")
    return getattr(getattr(ATEN, base), rest or "default")


VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
SETS = ("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor")
KERNELS: dict[str, Callable[..., Any]] = {name: _moved(overload(name)) for name in (*VIEWS, *SETS)} | {
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
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
"""What `compute` can't do."""
