"""Storages: which tensors share memory, where it lies, and who holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing.reductions

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.tensor_state import unwrapped

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

    class StorageRef(StorageWeakRef):
        """PyTorch's weak reference to a storage, with the types that its class lacks."""

        cdata: int

        def expired(self) -> bool:
            """Return True once the storage is gone."""


address: Callable[[torch.Tensor], int] = private.lookup("_C.TensorBase.data_ptr")
"""Returns what `tensor.data_ptr()` returns. The method itself may be replaced while noclobber is on
(exported_saves.py)."""
_has_storage: Callable[[torch.Tensor], bool] = private.lookup("_C._has_storage")
_storage_of: Callable[[torch.Tensor], torch.UntypedStorage] = private.lookup("_C.TensorBase.untyped_storage")
ref_of: Callable[[torch.UntypedStorage], StorageRef] = private.lookup("multiprocessing.reductions.StorageWeakRef")
storage_holders: Callable[[int], int] = private.lookup("_C._storage_Use_Count")
"""Returns how many tensors share the storage with this `_cdata`. The storage's Python object counts as one more."""


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a number that is equal for tensors that share memory; None without a storage (opaque).

    It is the address where the storage begins. That is cheaper than the Python object of a storage, and the same for
    memory that came in through numpy or DLPack. Without an address (meta and fake tensors, empty ones, functorch's
    wrappers) it is the identity of the StorageImpl. Both are reused as soon as the storage dies (955 of 1000 times,
    torch 2.13), so a key means something only while something holds the storage; the alias in a save does.
    """
    if (known := key_of_usual(tensor)) is not None:
        return known
    if type(tensor) in PLAIN:
        try:
            begin = address(tensor)
        except RuntimeError:
            begin = 0
        if begin:
            offset: int = tensor.storage_offset()  # type: ignore[assignment]
            begin -= offset * tensor.itemsize
        if begin:
            return begin
    held = storage_or_none(tensor)
    return None if held is None else key_of(held)


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors that no subclass changes."""
STORED: set[type] = {*PLAIN}
"""Those whose storage says how much memory they take. A fake run adds its own."""


def key_of(held: torch.UntypedStorage) -> int:
    """Return the key of a storage, which a subclass that wraps other tensors has too, without an address."""
    identity: int = held._cdata
    if held.device.type == "meta":  # of a fake tensor too, which warns of a question for its address (torch 2.13)
        return identity
    try:
        return held.data_ptr() or identity
    except RuntimeError:
        return identity


def bytes_at(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first byte; 0 where its storage has no memory.

    A program may take the memory of a storage away for a while (`untyped_storage().resize_(0)`, as FSDP does). A view
    into it still has an address, but nothing lies there (torch 2.13; tests/observe/core/test_kinds.py). Raises
    RuntimeError without a storage.
    """
    begin = address(tensor)
    if begin and (offset := tensor.storage_offset()):
        return begin if begin != offset * tensor.itemsize else 0
    return begin


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor, of a sparse one that of its values; every question about one comes through here.
    Raises NotImplementedError where there is none.

    PyTorch itself does not always look: a number on the lazy device has no storage, and what it gives in place of one
    ends the process when it is asked anything (torch 2.13; tests/observe/core/test_kinds.py).
    """
    if not _has_storage(shown := memory_of(tensor)):
        raise NotImplementedError("this tensor has no storage")
    return _storage_of(shown)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that shows the memory of another: the values of a sparse one, which share its version counter;
    any other itself (torch 2.13; tests/observe/core/test_sparse.py)."""
    values = _VALUES.get(tensor.layout) if type(tensor) in PLAIN else None
    if values is None:
        return tensor
    with modes.aside():
        return values(tensor)


_VALUES: dict[torch.layout, Callable[[torch.Tensor], torch.Tensor]] = {
    torch.sparse_coo: private.lookup("_C.TensorBase._values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc), torch.Tensor.values),
}


def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the Python object of a tensor's storage. It lives as long as the storage, so it can be referred to weakly.

    The class of a lazy parameter refuses to be asked (torch 2.13; tests/observe/core/test_lazy_modules.py), so
    `plain` goes past it.
    """
    with modes.plain():
        return _storage(unwrapped(tensor))


def storage_or_none(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return what `storage` returns; None of a tensor that has none."""
    try:
        return storage(tensor)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def ref_or_none(tensor: torch.Tensor) -> StorageRef | None:
    """Return what `storage_ref` returns; None of a tensor that has no storage."""
    known = ref_of_usual(tensor)
    if known is None and (held := storage_or_none(tensor)) is not None:
        return ref_of(held)
    return known


def storage_ref(tensor: torch.Tensor) -> StorageRef:
    """Return a reference whose `expired()` says whether the storage that the tensor has now is gone.

    The reference does not hold the memory, but no other storage gets the same identity while the reference exists.
    Unlike a weak reference to the tensor it does not forbid `swap_tensors` (torch 2.13;
    tests/observe/detectors/test_untracked.py).
    """
    return ref_of_usual(tensor) or ref_of(storage(tensor))


def is_at(ref: StorageRef, key: int | None) -> bool:
    """Return True if the storage behind a reference is there, and has this key.

    Once a program has taken its memory away (`untyped_storage().resize_(0)`), another storage may get the address.
    """
    held = storage_at(ref.cdata)
    return held is not None and key_of(held) == key


def of_none(_: torch.Tensor) -> None:
    """Return None, where there is no native part."""


key_of_usual: Callable[[torch.Tensor], int | None] = of_none
"""Returns what `storage_key` returns, of what the native part knows, which sets this; None of all others."""
ref_of_usual: Callable[[torch.Tensor], StorageRef | None] = of_none
"""The same for `storage_ref`."""


def is_only_holder(tensor: torch.Tensor) -> bool:
    """Return True if torch has allocated the storage of a plain tensor, and no other tensor shares it."""
    try:
        storage = _storage(tensor)  # the Python object, which counts as a holder too
        return storage_holders(storage._cdata) == 2 and storage.resizable()
    except (RuntimeError, NotImplementedError):  # without a storage
        return False


def storage_at(identity: int) -> torch.UntypedStorage | None:
    """Return the storage with this `_cdata`, which a weak reference must hold; None once the storage is gone."""
    memory: torch.UntypedStorage | None = private.lookup("UntypedStorage._new_with_weak_ptr")(identity)
    return memory
