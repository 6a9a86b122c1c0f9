"""The second witness: a fingerprint of a save's bytes, taken when it is saved and again when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import xxhash

from noclobber.observe import internals

LARGE = 64 * 1024
"""Bytes from which the fingerprint of a tensor that is saved several times is taken once."""
BLOCK = 1024 * 1024
"""Bytes copied at a time where a tensor's bytes do not lie one after another: the copy is not to raise the peak."""
_WEIGHTS = 4096

_hash = xxhash.xxh3_64_intdigest
_numpy: Callable[[torch.Tensor], Any] = internals.to_numpy
_UNREADABLE = (TypeError, RuntimeError, NotImplementedError, ValueError)


class OnDevice:
    """A fingerprint that stays on its device: comparing it at once would make the program wait for the device."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


Digest = int | OnDevice | None
"""None where there are no bytes to read: meta, fake and sparse tensors, subclasses."""


def fingerprint(tensor: torch.Tensor) -> Digest:
    """xxh3_64 of a tensor's bytes in index order; of tensors on a device a weighted sum, left there."""
    try:
        return _hash(_numpy(tensor))
    except _UNREADABLE:
        return _fingerprint_of_any(tensor)


def _fingerprint_of_any(tensor: torch.Tensor) -> Digest:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    try:
        plain = _plain(tensor.detach())
        if plain.device.type != "cpu":
            return None if plain.device.type == "meta" else OnDevice(weighted(plain))
        if 0 in plain.shape:
            return 0
        return _in_blocks(_numpy(plain))
    except _UNREADABLE:
        return None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The stored numbers themselves, without a copy: not conjugated or negated, of a type that numpy has, each once."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.is_conj():
        tensor = tensor.conj()
    if tensor.is_neg():
        tensor = internals.neg_view(tensor)
    if tensor.dtype in _AS:
        tensor = tensor.view(_AS[tensor.dtype])
    for dimension, stride in reversed(list(enumerate(tensor.stride()))):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


_AS = {torch.bfloat16: torch.int16} | {
    dtype: torch.uint8 for name in dir(torch) if name.startswith("float8_") and (dtype := getattr(torch, name))
}
"""Types that numpy lacks, and one of the same size that it has."""


def _in_blocks(array: Any) -> int:
    """The fingerprint of an array in any order of strides."""
    # The longest strides first: a transposed array is contiguous then.
    array = array.transpose(sorted(range(array.ndim), key=lambda dimension: -array.strides[dimension]))
    if array.flags.c_contiguous:
        return _hash(array)
    if array.nbytes <= BLOCK or array.ndim == 0:
        return _hash(array.tobytes())
    state = xxhash.xxh3_64()
    _feed(state, array)
    return int(state.intdigest())


def _feed(state: Any, array: Any) -> None:
    """Add the bytes of an array to a running fingerprint, at most about BLOCK of them copied at a time."""
    row = array.nbytes // len(array)
    if row > BLOCK and array.ndim > 1:
        for part in array:
            _feed(state, part)
        return
    rows = max(1, BLOCK // max(row, 1))
    for start in range(0, len(array), rows):
        state.update(array[start : start + rows].tobytes())


def weighted(tensor: torch.Tensor) -> torch.Tensor:
    """A fingerprint in plain torch, of shape () and dtype int64, on the tensor's device; no value leaves it.

    The bytes as 64-bit numbers in rows of 4096, times odd weights of their row and of their column: tells a swap of two
    elements and changes that cancel, which a plain sum does not (capture-mechanisms 1 (o)).
    """
    words = tensor.contiguous().view(torch.uint8).reshape(-1)
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
        try:
            array = _numpy(alias)
            if array.nbytes < LARGE:
                return _hash(array)
        except _UNREADABLE:
            digest = _fingerprint_of_any(alias)
            self.unread += digest is None
            return digest
        key = _identity(alias)
        known = self._saved.get(key)
        if known is not None and known[0]() is not None:
            return known[1]
        digest = fingerprint(alias)
        if alias.untyped_storage().resizable():
            self._saved[key] = (ref(alias), digest)
            if len(self._saved) > self._limit:
                self._saved = {key: entry for key, entry in self._saved.items() if entry[0]() is not None}
                self._limit = max(256, 2 * len(self._saved))
        return digest

    def at_read(self, alias: torch.Tensor) -> Digest:
        """The fingerprint of what is about to be read."""
        try:
            array = _numpy(alias)
            if array.nbytes < LARGE:
                return _hash(array)
        except _UNREADABLE:
            return _fingerprint_of_any(alias)
        key = _identity(alias)
        digest = self._read.get(key)
        if digest is None:
            digest = fingerprint(alias)
            if self.sharing and alias.untyped_storage().resizable():
                self._read[key] = digest
        return digest

    sharing = False
    """Whether a backward is under way that runs no Python, so that reads of the same bytes give the same."""

    def begin(self, sharing: bool) -> None:
        """A backward begins, or ends (`sharing` False)."""
        self.sharing = sharing
        self._read.clear()


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (internals.address(tensor), tensor._version, tensor.shape, tensor.stride(), tensor.dtype)
