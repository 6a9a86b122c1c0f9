"""Fingerprints of the bytes of a save, taken at save and again at read. They find changes that no version counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from time import perf_counter
from weakref import ref

import torch
import xxhash

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import modes, spare_key
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import once, reach

LARGE = 64 * 1024
"""From this size on, in bytes, a tensor that is saved several times is read only once."""
MOST_OVERWRITTEN = 16384
"""Storages that are remembered as overwritten."""
BLOCK = 1024 * 1024
"""How many bytes are copied at a time where a tensor has gaps, so that the copy does not raise the memory peak."""
_ROW = 4096
_SIGNED_ZEROS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

View = ctypes.Array[ctypes.c_char]
"""Memory of the CPU, shown as bytes."""
hash_of: Callable[[View | bytes], int] = xxhash.xxh3_64_intdigest
_UNREADABLE = (TypeError, RuntimeError, NotImplementedError, ValueError)


@lru_cache(maxsize=4096)
def _viewer(size: int) -> Callable[[int], View]:
    """Return a function that shows `size` bytes from an address on. Its caller must hold the tensor meanwhile.

    `Tensor.numpy` could show them too, but a tensor that was once seen as an array cannot be resized afterwards (torch
    2.13; test_a_tensor_can_still_be_resized).
    """
    return (ctypes.c_char * size).from_address


Pieces = Callable[[View], Iterable[bytes]] | None
"""Takes the bytes out of memory that belong to a tensor; None where there are no gaps, whatever the order of the
dimensions."""


@dataclass(slots=True, eq=False)
class OnDevice:
    """A fingerprint that stays on its device, because reading its value makes the program wait for the device."""

    value: torch.Tensor
    unsigned: torch.Tensor
    """The same of the numbers, whatever the signs of their zeros; of the bytes, if these are no real numbers."""


Digest = int | OnDevice | None
"""None if no bytes can be read: of meta and fake tensors, of subclasses, while a CUDA graph is captured."""


NEVER: Digest = -1
"""A fingerprint that differs from that of any bytes."""


def same(one: Digest, other: Digest) -> bool:
    """Return True if two fingerprints are known to be equal. Waits for their device."""
    if not isinstance(one, OnDevice):
        return one is not None and one == other
    answer = differs(one, other)
    return not (answer if isinstance(answer, bool) else all_known([answer])[0])


def differs(one: Digest, other: Digest) -> torch.Tensor | bool:
    """Return whether two fingerprints differ; on a device as a tensor that stays there, for `all_known`."""
    if isinstance(one, OnDevice) and isinstance(other, OnDevice):
        with modes.aside():
            return one.value != other.value
    return one != other


def all_known(answers: list[torch.Tensor | bool]) -> list[bool]:
    """Return the values of several answers of `differs`. The program waits once for each device."""
    known = {index: answer for index, answer in enumerate(answers) if isinstance(answer, bool)}
    waiting = [(index, answer) for index, answer in enumerate(answers) if not isinstance(answer, bool)]
    for device in {answer.device for _, answer in waiting}:
        there = [(index, answer) for index, answer in waiting if answer.device == device]
        with modes.aside():
            values = torch.stack([answer for _, answer in there]).tolist()
        known |= zip((index for index, _ in there), values, strict=True)
    return [known[index] for index in range(len(answers))]


def same_but_for_zeros(tensor: torch.Tensor, digest: Digest) -> bool:
    """Return True if a tensor has the same numbers as when `digest` was taken, except for the sign of zeros.

    Waits for the tensor's device. This is known only of real numbers, and on the CPU only if all zeros had one sign at
    that time; otherwise False. -0.0 equals 0.0 although the bytes differ: products and sums with either are equal.
    """
    if isinstance(digest, OnDevice):
        return all_known([differs_in_numbers(fingerprint(tensor), digest)]) == [False]
    return any(same(_with_zeros(tensor, zero), digest) for zero in (0.0, -0.0))


def differs_in_numbers(now: Digest, before: Digest) -> torch.Tensor | bool:
    """Return what `differs` does, but zeros of another sign do not count on a device."""
    if not isinstance(now, OnDevice) or not isinstance(before, OnDevice):
        return differs(now, before)
    with modes.aside():
        return now.unsigned != before.unsigned


def _with_zeros(tensor: torch.Tensor, zero: float) -> Digest:
    """Return the fingerprint that a tensor has with all its zeros set to `zero`; None if it has no real numbers."""
    if not _has_memory(type(tensor)) or tensor.is_nested or tensor.layout is not torch.strided:
        return None
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_neg():
        return None
    if not storages.bytes_at(tensor) or not _has_all(tensor):
        return None
    with modes.aside():
        span = tensor_state.detach(tensor).as_strided((reach(tensor) + 1,), (1,)).clone()
        return fingerprint(span.masked_fill_(span == 0, zero).as_strided(tensor.shape, tensor.stride(), 0))


def fingerprint(tensor: torch.Tensor) -> Digest:
    """Return the xxh3_64 hash of a tensor's bytes, or of a tensor on a device a weighted sum that stays there.

    None if no bytes can be read; of a sparse tensor those of its values are. Each element counts once, also where a
    tensor is expanded. Marks (conjugated, negated)
    and the dtype make no difference, because only fingerprints of the same tensor are compared. Where the native part
    is there, it reads the usual tensors.
    """
    return _fingerprint(tensor) if (digest := of_usual(tensor)) is None else digest


def fingerprint_aside(tensor: torch.Tensor) -> Digest:
    """Return the fingerprint in the middle of the program's operators, unseen by its modes."""
    with modes.aside():
        return fingerprint(tensor)


of_usual: Callable[[torch.Tensor], int | None] = storages.of_none
"""Returns the fingerprint of what the native part can read, which sets this; None for all others."""


def _fingerprint(tensor: torch.Tensor) -> Digest:
    if not _has_memory(type(tensor)):
        return None
    try:
        tensor = storages.memory_of(tensor)
        address = storages.bytes_at(tensor)
        if not address:
            return 0 if 0 in tensor.shape else None
        if not tensor.is_cpu:
            return _on_device(tensor) if is_on_device(tensor) else None
        if not _has_all(tensor):
            return None
        memory = _shown(tensor, address)
        return _scattered(tensor) if memory is None else digest_of(memory)
    except _UNREADABLE:
        return None


def _has_all(tensor: torch.Tensor) -> bool:
    """Return True if the storage of a tensor reaches to its last element. A program may have made it smaller."""
    # The sizes of a nested tensor are those of its parts.
    length = tensor.numel() if tensor.is_nested or tensor.is_contiguous() else 1 + reach(tensor)
    return storages.storage(tensor).nbytes() >= (tensor.storage_offset() + length) * tensor.itemsize


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has bytes that can be read now, on a device."""
    if tensor.is_cpu or not _has_memory(type(tensor)) or tensor.layout is not torch.strided or tensor.is_meta:
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # what is computed would become part of the program's graph, and nobody may wait for it
    return bool(storages.bytes_at(tensor))


def _on_device(tensor: torch.Tensor) -> Digest:
    with modes.aside():
        return OnDevice(*weighted(tensor))


Shown = tuple[View, int, Pieces]
"""The memory of a tensor from its first byte to the last, and the address where it begins. It does not keep the memory
alive: look at it only while a tensor lives that begins at the address."""
OUTSIDE: Shown = ((ctypes.c_char * 0)(), -1, None)
"""In place of `shown`, for a large save of a tensor that requires no gradient. The tensor may lie on the `.grad` of a
leaf, and backward adds to that. So every read hashes the bytes again."""


def shown(tensor: torch.Tensor) -> Shown | None:
    """Return what shows a small tensor in the CPU's memory, at save and again at read; None for all others."""
    try:
        if type(tensor) not in _real or not tensor.is_cpu or not (begin := storages.bytes_at(tensor)):
            return None
        return _shown(tensor, begin) if 0 < tensor.nbytes < LARGE else None
    except _UNREADABLE:
        return None


def _shown(tensor: torch.Tensor, begin: int) -> Shown | None:
    """Return what shows a tensor that begins at an address of the CPU; None if its bytes lie in many pieces."""
    if tensor.is_contiguous():
        return _viewer(tensor.nbytes)(begin), begin, None
    plan = _strided(tensor.shape, tensor.stride(), tensor.itemsize)
    return None if plan is None else (plan[0](begin), begin, plan[1])


def digest_of(memory: Shown) -> int:
    """Return the fingerprint of memory that `shown` returned."""
    view, _, pieces = memory
    return hash_of(view if pieces is None else b"".join(pieces(view)))


@lru_cache(maxsize=4096)
def _strided(shape: torch.Size, strides: tuple[int, ...], itemsize: int) -> tuple[Callable[[int], View], Pieces] | None:
    """Return what shows a tensor that is not contiguous from an address on, and its pieces; None unless it is a few
    rows, equally far apart."""
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
        return _viewer(end), None
    return _viewer(end), itemgetter(*(slice(start, start + length) for start in range(0, end, apart)))


def numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a plain tensor of the numbers that a tensor holds; None if there are none to look at.

    Meta and fake tensors hold none, and the operators of other subclasses are the program's. A sparse tensor gives its
    values, a nested one its elements in one row. Call this inside `aside`; tests/observe/core/test_unreadable.py.
    """
    tensor = tensor_state.unwrapped(tensor)
    if not _has_memory(type(tensor)) or tensor.is_meta or _is_batched(tensor):
        return None
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_nested:
        return tensor.values()
    return storages.memory_of(tensor)


def _is_batched(tensor: torch.Tensor) -> bool:
    """Return True for the gradients of `is_grads_batched`: such a tensor stands for many, and shows no numbers."""
    return bool(private.lookup("_C._functorch.is_legacy_batchedtensor")(tensor))


_real: set[type] = {torch.Tensor, torch.nn.Parameter}


def _has_memory(kind: type) -> bool:
    """Return True if tensors of a class hold their numbers themselves. Those that dispatch in Python may not (fake)."""
    if kind not in _real and getattr(kind, "__torch_dispatch__", None) == torch.Tensor.__torch_dispatch__:
        _real.add(kind)
    return kind in _real


def _scattered(tensor: torch.Tensor) -> int:
    state = xxhash.xxh3_64()
    with modes.aside():
        _feed(state, _in_order(tensor))
    return int(state.intdigest())


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with each element once and the longest strides first. Its pieces are as long as possible."""
    each = once(tensor_state.detach(tensor))
    strides = each.stride()
    return each.permute(sorted(range(each.dim()), key=lambda dimension: -strides[dimension]))


def stored_like(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return the order of the dimensions in memory, outermost first, and whether the tensor is conjugated or negated.

    Fingerprints of two tensors of one shape and type can be compared if this is equal. Dimensions of one element do not
    count. Nor do expanded ones, as a fingerprint takes one element of them.
    """
    return order(tensor.shape, tensor.stride()), tensor.is_conj(), tensor.is_neg()


def order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the order of the dimensions in memory, as `stored_like` does."""
    real = [dimension for dimension, size in enumerate(shape) if size != 1 and strides[dimension]]
    return sorted(real, key=lambda dimension: -strides[dimension])


def _feed(state: xxhash.xxh3_64, tensor: torch.Tensor) -> None:
    """Add the bytes of a tensor to a running fingerprint. About BLOCK bytes at most are copied at a time."""
    size = tensor.numel() * tensor.itemsize
    if size <= BLOCK:
        copy = tensor.contiguous()
        state.update(_viewer(size)(storages.address(copy)))
    else:
        rows = max(1, BLOCK * len(tensor) // size)
        parts = torch.split(tensor, rows) if len(tensor) > 1 else torch.unbind(tensor)
        for part in parts:
            _feed(state, part)


def weighted(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two fingerprints in plain torch, of shape () and dtype int64, on the tensor's device; no value leaves it.

    The bytes are read as whole numbers of up to 32 bits: a change of the highest of 64 bits would be lost in the
    product with an even weight, and two such changes would cancel whatever the weights. In rows of 4096, each number is
    weighted by the weight of its row and that of its column. Unlike a plain sum this notices a swap of two elements,
    and changes that cancel. In the second fingerprint zeros of either sign count as the same. Copies are of one part of
    a large tensor at a time.
    """
    if tensor.is_contiguous():
        flat = as_stored(tensor).view(-1)
    else:
        dense = as_stored(_in_order(tensor)).contiguous()
        flat = dense.as_strided((dense.numel(),), (1,))  # a dimension of one element has any stride
    size = flat.itemsize
    ends = flat.numel() * size | int(flat.storage_offset()) * size
    wide = torch.uint8 if ends & 1 else torch.int16 if ends & 2 else torch.int32
    weights, signed = _weights(flat.device), flat.dtype in _SIGNED_ZEROS
    if flat.numel() * size <= _PART:
        value = _weighted(flat.view(wide), weights)
        return value, _weighted((flat + 0.0).view(wide), weights) if signed else value
    value = unsigned = flat.new_zeros((), dtype=torch.int64)
    for part in torch.split(flat, _PART // size):
        value = value * _FACTOR + _weighted(part.view(wide), weights)
        if signed:
            unsigned = unsigned * _FACTOR + _weighted((part + 0.0).view(wide), weights)
    return value, unsigned if signed else value


_PART = 1 << 24
"""Bytes of a part."""
_FACTOR = 0x1E3779B97F4A7C15


def _weighted(words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of the whole numbers of one part."""
    count = words.numel()
    if count < _ROW:
        return (words * weights[_ROW : _ROW + count]).sum()
    inside = count - count % _ROW
    table = words[:inside].view(-1, _ROW)
    sums = torch.cat([table.sum(0), table.sum(1), words[inside:].to(torch.int64)])
    return (sums * weights[: sums.numel()]).sum()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return random weights: those of the columns of a row, and then all others.

    They are copied from the CPU once, which waits for the device: no stream of it can find them half made.
    """
    drawn = torch.empty(2 * _ROW + _PART // _ROW, device="cpu", dtype=torch.int64)
    drawn.random_(-(2**63), None, generator=torch.Generator("cpu").manual_seed(0))
    return drawn.to(device)


def as_stored(tensor: torch.Tensor, marked: torch.Tensor | None = None) -> torch.Tensor:
    """Return a tensor on the same bytes without its marks (conjugated, negated), which change what bytes mean.

    Given `marked`, `tensor` must have no marks; the result then has those of `marked`.
    """
    like = tensor if marked is None else marked
    other: torch.Tensor = tensor.conj() if like.is_conj() else tensor
    return torch._neg_view(other) if like.is_neg() else other


class Contents:
    """Takes fingerprints at save and at read, and reuses those of large tensors while the bytes cannot have changed.

    A tensor that is saved several times at one version is hashed once for all its saves, while one of them is alive,
    and once for all its reads in a backward that runs no Python. Memory that torch did not allocate is always hashed,
    and so is memory that a write is about to change without a version that tells (`begins_to_write`).
    """

    def __init__(self, *, only_foreign: bool = False) -> None:
        self.only_foreign = only_foreign
        """Whether the saves of large tensors on the CPU need a fingerprint only while code outside of torch can write
        them, or on storages in `moved`: where bytes are preserved, torch's own writes are seen before they happen."""
        self.writes_unseen: Callable[[], bool] | None = None
        """Returns True if code outside of torch may write the memory of a device without asking for its address
        (unseen_writers.py). While it does not, a save there needs a fingerprint only where `only_foreign` says so: a
        fingerprint takes a dozen kernels, and a step of small tensors took 5 to 14 times as long (H200, torch 2.11).
        None where every save gets one."""
        self.handed: Mapping[int, object] = {}
        """The storages that foreign code may hold, by key (exported_saves.py)."""
        self.moved: dict[int, ref[torch.UntypedStorage]] = {}
        """The storages whose tensors have several version counters, and those that share one with tensors on another
        storage, by key: a tensor has left them for others, or come to them, or the program has read the `.data` of a
        tensor in the graph. The version of a save does not tell of each write there."""
        self.sees_all_writes = True
        """Whether `begins_to_write` is called for every write, and not only where live saves are met."""
        self._overwritten: dict[int, int] = {}
        self._saved: dict[tuple[object, ...], tuple[ref[torch.Tensor], Digest]] = {}
        self._read: dict[tuple[object, ...], Digest] = {}
        self._limit = 256
        self.unread = 0
        """How many saves had no bytes to read."""

    def at_pack(self, alias: torch.Tensor) -> Digest:
        """Return the fingerprint of a save that autograd makes; None also where it needs none for now."""
        return None if self._goes_without(alias) else self.at_save(alias)

    def _goes_without(self, alias: torch.Tensor) -> bool:
        """Return True if only torch can write the bytes of a save, so that its writes are seen before they happen."""
        if alias.is_cpu:
            if not self.only_foreign or identity(alias) is None or storages.storage(alias).is_shared():
                return False
        # Metal's shaders get tensors as they are.
        elif self.writes_unseen is None or alias.is_mps or not _is_of_torch(alias) or self.writes_unseen():
            return False
        key = storages.storage_key(alias)
        return key is not None and key not in self.moved and self._is_settled(key)

    def moves(self, key: int, storage: torch.UntypedStorage) -> None:
        """Note a storage whose versions do not tell of each write from now on (`moved`)."""
        moved = self.moved
        moved[key] = ref(storage, lambda _: moved.pop(key, None))

    def begins_to_write(self, key: int) -> None:
        """Note that an operator is about to write this storage, where the version of a save may not tell: it writes a
        tensor outside of the graph or a Parameter, or counts no version (fused optimizers, batch norm's statistics)."""
        if len(self._overwritten) >= MOST_OVERWRITTEN:
            self._overwritten.clear()
            self._saved.clear()
        self._overwritten[key] = self._overwritten.get(key, 0) + 1

    def _is_settled(self, key: int) -> bool:
        """Return False if the bytes of a storage may be about to change though no version tells: foreign code may hold
        them, or the operator that saves them overwrites them too. The spare key is off while such an operator runs."""
        if key in self.handed:
            return False
        return spare_key.key_is_set() or (self.sees_all_writes and key not in self._overwritten)

    def at_save(self, alias: torch.Tensor) -> Digest:
        """Return the fingerprint of a tensor that is being saved."""
        key = identity(alias)
        if key is not None:
            storage = storages.storage_key(alias) or 0
            key = (*key, self._overwritten.get(storage, 0)) if self._is_settled(storage) else None
        known = self._saved.get(key) if key is not None else None
        if known is not None and known[0]() is not None:
            return known[1]
        digest = _clocked(alias)
        if digest is None:
            self.unread += 1
        elif key is not None:
            self._saved[key] = (ref(alias), digest)
            if len(self._saved) > self._limit:
                self._saved = {key: entry for key, entry in self._saved.copy().items() if entry[0]() is not None}
                self._limit = max(256, 2 * len(self._saved))
        return digest

    def at_read(self, alias: torch.Tensor) -> Digest:
        """Return the fingerprint of a save that is about to be read."""
        key = identity(alias) if self.sharing else None
        digest = self._read.get(key) if key is not None else None
        if digest is None:
            digest = _clocked(alias)
            if key is not None:
                self._read[key] = digest
        return digest

    sharing = False
    """True during a backward that runs no Python, where all reads of the same memory find the same bytes."""

    def begin(self, sharing: bool) -> None:
        """Begin a backward, or end it (`sharing` False)."""
        self.sharing = sharing
        self._read.clear()


clocked = [0.0]
"""The seconds that `Contents` has spent on bytes, as the only item (arming/own_cost.py)."""


def _clocked(tensor: torch.Tensor) -> Digest:
    began = perf_counter()
    digest = fingerprint(tensor)
    clocked[0] += perf_counter() - began
    return digest


def _is_of_torch(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has bytes, in memory that torch allocated."""
    try:
        return type(tensor) in _real and bool(storages.bytes_at(tensor)) and storages.storage(tensor).resizable()
    except _UNREADABLE:
        return False


def identity(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Return what identifies the bytes of a large tensor while it lives; None for a small tensor, for one without
    bytes, and for memory that torch did not allocate."""
    if not _is_of_torch(tensor) or tensor.numel() * tensor.itemsize < LARGE:
        return None
    try:
        return storages.bytes_at(tensor), tensor._version, tensor.shape, tensor.stride(), tensor.dtype
    except _UNREADABLE:
        return None
