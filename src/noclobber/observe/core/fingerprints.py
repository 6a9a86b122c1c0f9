"""The second witness: a fingerprint of a save's bytes, taken when it is saved and again when it is read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import ref

import torch
import xxhash

from noclobber.observe.torch_api import private

LARGE = 64 * 1024
"""Bytes from which the fingerprint of a tensor that is saved several times is taken once."""
BLOCK = 1024 * 1024
"""Bytes copied at a time where a tensor's bytes do not lie one after another: the copy is not to raise the peak."""
_WEIGHTS = 4096

hash_of: Callable[[Any], int] = xxhash.xxh3_64_intdigest
_UNREADABLE = (TypeError, RuntimeError, NotImplementedError, ValueError)
_bytes_at: dict[int, Callable[[int], Any]] = {}
"""By size: what shows the memory at an address as bytes. `Tensor.numpy` would do, but a tensor that was once seen as an
array can't be resized any more (torch 2.13; test_a_tensor_can_still_be_resized)."""


def _viewer(size: int) -> Callable[[int], Any]:
    """What shows `size` bytes of the CPU's memory from an address on; whoever looks must hold the tensor."""
    at = _bytes_at.get(size)
    if at is None:
        if len(_bytes_at) > 4096:
            _bytes_at.clear()
        at = _bytes_at[size] = (ctypes.c_char * size).from_address
    return at


class Plan(NamedTuple):
    """How to read a tensor of some layout: what shows its bytes from the first to the last, and what takes those out
    that belong to it; None where there are no gaps, whatever the order of the dimensions."""

    at: Callable[[int], Any]
    pieces: Callable[[Any], Iterable[bytes]] | None


class OnDevice:
    """A fingerprint that stays on its device: comparing it at once would make the program wait for the device."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


Digest = int | OnDevice | None
"""None where there are no bytes to read: meta, fake and sparse tensors, subclasses, while a CUDA graph is captured."""


NEVER: Digest = -1
"""A fingerprint that no bytes have."""


def same(one: Digest, other: Digest) -> bool:
    """Whether two fingerprints are known to be equal; waits for the device that they are on."""
    return one is not None and not differ(one, other)


def differ(one: Digest, other: Digest) -> bool:
    """Whether two fingerprints are other ones; waits for the device that they are on."""
    return all_known([differs(one, other)])[0]


def differs(one: Digest, other: Digest) -> torch.Tensor | bool:
    """Whether two fingerprints are other ones; left on their device, for `all_known`."""
    if isinstance(one, OnDevice) and isinstance(other, OnDevice):
        with private.aside():
            return one.value != other.value
    return one != other


def all_known(answers: list[torch.Tensor | bool]) -> list[bool]:
    """The values of what `differs` gave. The program waits once for each device."""
    known = {index: one for index, one in enumerate(answers) if isinstance(one, bool)}
    waiting = [(index, one) for index, one in enumerate(answers) if not isinstance(one, bool)]
    for device in {one.device for _, one in waiting}:
        there = [(index, one) for index, one in waiting if one.device == device]
        with private.aside():
            values = torch.stack([one for _, one in there]).tolist()
        known |= zip((index for index, _ in there), values, strict=True)
    return [known[index] for index in range(len(answers))]


def same_but_for_zeros(tensor: torch.Tensor, digest: Digest) -> bool:
    """Whether a tensor has the numbers that a fingerprint is of, with zeros of another sign; waits for its device.

    Known only where all those zeros had one sign, of real numbers; else False. As -0.0 == 0.0, but not their bytes,
    what multiplies with them or adds them up gives the same numbers.
    """
    return any(same(_with_zeros(tensor, zero), digest) for zero in (0.0, -0.0))


def differs_in_numbers(tensor: torch.Tensor, now: Digest, before: Digest) -> torch.Tensor | bool:
    """Whether a tensor, whose fingerprint is `now`, has other numbers than one `before`: zeros of another sign do not
    count. Left on its device, for `all_known`."""
    answer = differs(now, before)
    for zero in (0.0, -0.0):
        other = differs(_with_zeros(tensor, zero), before)
        with private.aside():
            answer = answer & other
    return answer


def _with_zeros(tensor: torch.Tensor, zero: float) -> Digest:
    """The fingerprint of a tensor if all its zeros were this one; None where it has no real numbers."""
    if not _has_memory(type(tensor)) or tensor.is_nested or tensor.layout is not torch.strided:
        return None
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_neg() or tensor.is_meta:
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    with private.aside():
        span = tensor.detach().as_strided((last + 1,), (1,)).clone()
        return fingerprint(span.masked_fill_(span == 0, zero).as_strided(tensor.shape, tensor.stride(), 0))


def fingerprint(tensor: torch.Tensor) -> Digest:
    """xxh3_64 of a tensor's bytes; of tensors on a device a weighted sum, left there.

    Each element counts once, also where a tensor is expanded. Marks (conjugated, negated) and the type make no
    difference: it is meant to be compared with another fingerprint of the same tensor.
    """
    if not _has_memory(type(tensor)):
        return None
    try:
        if not tensor.is_cpu:
            return _on_device(tensor)
        address = private.address(tensor)
        if not address:
            return 0 if 0 in tensor.shape else None
        if tensor.is_contiguous():
            return hash_of(_viewer(tensor.nbytes)(address))
        plan = _strided(tensor.shape, tensor.stride(), tensor.itemsize)
        return _scattered(tensor) if plan is None else digest_of((plan.at(address), address, plan.pieces))
    except _UNREADABLE:
        return None


def _on_device(tensor: torch.Tensor) -> Digest:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # what is computed now becomes part of the program's graph, and nobody may wait for it
    with private.aside():
        return OnDevice(weighted(tensor))


Shown = tuple[Any, int, Callable[[Any], Iterable[bytes]] | None]
"""A small tensor's memory as bytes, the address that it begins at, and the `pieces` of its plan. It keeps no memory: to
be looked at as long as a tensor is there that begins at the address."""
_small: dict[int, Callable[[int], Any]] = {}


def shown(tensor: torch.Tensor) -> Shown | None:
    """What shows a small tensor in the CPU's memory, at save and again at read; None for all others."""
    try:
        if type(tensor) not in _real or not tensor.is_cpu or not (begin := private.address(tensor)):
            return None
        size = tensor.nbytes
        if not tensor.is_contiguous():
            plan = _strided(tensor.shape, tensor.stride(), tensor.itemsize) if size < LARGE else None
            return None if plan is None else (plan.at(begin), begin, plan.pieces)
        at = _small.get(size)
        if at is None:
            if not 0 < size < LARGE:
                return None
            at = _small[size] = _viewer(size)
        return at(begin), begin, None
    except _UNREADABLE:
        return None


def digest_of(memory: Shown) -> int:
    """The fingerprint of what is shown."""
    view, _, pieces = memory
    return hash_of(view if pieces is None else b"".join(pieces(view)))


@lru_cache(maxsize=4096)
def _strided(shape: torch.Size, strides: tuple[int, ...], itemsize: int) -> Plan | None:
    """How to read a tensor that is not contiguous; None where it is more than a few rows, equally far apart."""
    rows, length, apart = 1, itemsize, 0
    for stride, size in sorted(zip((stride * itemsize for stride in strides), shape, strict=True)):
        if size == 1 or stride == 0:
            continue
        if rows == 1 and stride == length:
            length *= size
        elif rows == 1 and stride > length:
            rows, apart = size, stride
        elif rows > 1 and stride == rows * apart:
            rows *= size
        else:
            return None
    if rows > 64 or (rows > 1 and rows * length > BLOCK):
        return None
    end = (rows - 1) * apart + length
    if rows == 1:
        return Plan(_viewer(end), None)
    return Plan(_viewer(end), itemgetter(*(slice(start, start + length) for start in range(0, end, apart))))


def numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a plain tensor of the numbers that a tensor keeps; None where there are none to look at.

    Meta and fake tensors have none, and the operators of other subclasses are the program's. A sparse tensor gives its
    values, a nested one its elements in one row. To be called `aside`; tests/observe/core/test_unreadable.py.
    """
    tensor = private.unwrapped(tensor)
    if not _has_memory(type(tensor)) or tensor.is_meta or _is_batched(tensor):
        return None
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_sparse:
        return tensor._values()
    if tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.values()
    return tensor


def _is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for many: the gradients of `is_grads_batched`, which show no single number."""
    return bool(private.lookup("_C._functorch.is_legacy_batchedtensor")(tensor))


_real: set[type] = {torch.Tensor, torch.nn.Parameter}


def _has_memory(kind: type) -> bool:
    """Whether tensors of a class hold their numbers themselves: those that dispatch in Python (fake) need not."""
    if kind not in _real and getattr(kind, "__torch_dispatch__", None) == torch.Tensor.__torch_dispatch__:
        _real.add(kind)
    return kind in _real


def _scattered(tensor: torch.Tensor) -> int:
    """The fingerprint of a tensor whose bytes lie in many pieces, by way of copies."""
    state = xxhash.xxh3_64()
    with private.aside():
        _feed(state, _in_order(tensor))
    return int(state.intdigest())


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Each element of a tensor once, the longest strides first, so that as much as possible lies in one piece."""
    once = tensor.detach()
    for dimension, stride in enumerate(once.stride()):
        if stride == 0:
            once = once.narrow(dimension, 0, min(1, once.shape[dimension]))
    strides = once.stride()
    return once.permute(sorted(range(once.dim()), key=lambda dimension: -strides[dimension]))


def _feed(state: Any, tensor: torch.Tensor) -> None:
    """Add the bytes of a tensor to a running fingerprint, at most about BLOCK of them copied at a time."""
    size = tensor.numel() * tensor.itemsize
    if size <= BLOCK:
        copy = tensor.contiguous()
        state.update(_viewer(size)(private.address(copy)))
    else:
        rows = max(1, BLOCK * len(tensor) // size)
        parts = torch.split(tensor, rows) if len(tensor) > 1 else torch.unbind(tensor)
        for part in parts:
            _feed(state, part)


def weighted(tensor: torch.Tensor) -> torch.Tensor:
    """A fingerprint in plain torch, of shape () and dtype int64, on the tensor's device; no value leaves it.

    The bytes as 64-bit numbers in rows of 4096, times odd weights of their row and of their column: tells a swap of two
    elements and changes that cancel, which a plain sum does not.
    """
    dense = _as_stored(_in_order(tensor)).contiguous()
    words = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # a dimension of one element has any stride
    whole = words.numel() // 8
    total = (words[whole * 8 :].to(torch.int64) * _odd(words.numel() - whole * 8, words.device)).sum()
    if not whole:
        return total
    aligned = words if words.storage_offset() % 8 == 0 else words.clone()
    numbers = aligned[: whole * 8].view(torch.int64)
    rows = whole // _WEIGHTS
    if rows:
        table = numbers[: rows * _WEIGHTS].view(rows, _WEIGHTS)
        columns = table.sum(0) * _odd(_WEIGHTS, words.device)
        lines = table.sum(1) * _odd(rows, words.device).mul(3)
        total = total + columns.sum() + lines.sum()
    rest = numbers[rows * _WEIGHTS :]
    return total + (rest * _odd(rest.numel(), words.device).mul(5)).sum()


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the marks that make its bytes stand for others."""
    plain: torch.Tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(plain) if plain.is_neg() else plain


def _odd(count: int, device: torch.device) -> torch.Tensor:
    """`count` odd weights, far apart: multiples of a large odd constant, made odd."""
    return torch.arange(1, count + 1, device=device, dtype=torch.int64) * 0x1E3779B97F4A7C15 | 1


class Contents:
    """Fingerprints at save and at read; those of large tensors are shared while the bytes cannot have changed.

    A tensor that is saved several times at one version is read once for all its saves, as long as one of them is alive,
    and in a backward that runs no Python once for all its reads. Memory that torch did not allocate is always read.
    """

    def __init__(self) -> None:
        self._saved: dict[tuple[Any, ...], tuple[ref[torch.Tensor], Digest]] = {}
        self._read: dict[tuple[Any, ...], Digest] = {}
        self._limit = 256
        self.unread = 0
        """Saves that have no bytes to read."""

    def at_save(self, alias: torch.Tensor) -> Digest:
        """The fingerprint of what is being saved."""
        key = _identity(alias)
        known = self._saved.get(key) if key is not None else None
        if known is not None and known[0]() is not None:
            return known[1]
        digest = fingerprint(alias)
        if digest is None:
            self.unread += 1
        elif key is not None:
            self._saved[key] = (ref(alias), digest)
            if len(self._saved) > self._limit:
                self._saved = {key: entry for key, entry in self._saved.copy().items() if entry[0]() is not None}
                self._limit = max(256, 2 * len(self._saved))
        return digest

    def at_read(self, alias: torch.Tensor) -> Digest:
        """The fingerprint of what is about to be read."""
        key = _identity(alias) if self.sharing else None
        digest = self._read.get(key) if key is not None else None
        if digest is None:
            digest = fingerprint(alias)
            if key is not None:
                self._read[key] = digest
        return digest

    sharing = False
    """Whether a backward is under way that runs no Python, so that reads of the same bytes give the same."""

    def begin(self, sharing: bool) -> None:
        """A backward begins, or ends (`sharing` False)."""
        self.sharing = sharing
        self._read.clear()


def _identity(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """What tells a large tensor's bytes, while it lives; None for a small one and for memory of others."""
    try:
        if type(tensor) not in _real or tensor.numel() * tensor.itemsize < LARGE:
            return None
        if not private.storage(tensor).resizable():
            return None
        return (private.address(tensor), tensor._version, tensor.shape, tensor.stride(), tensor.dtype)
    except _UNREADABLE:
        return None
