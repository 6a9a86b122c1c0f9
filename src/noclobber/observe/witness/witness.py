"""A witness of a tensor's bytes: what they were at one moment, and a way to look at them again."""

from __future__ import annotations

from enum import Enum
from typing import Self

import torch

from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, OnDevice, fingerprint, same
from noclobber.observe.witness.layout import Geometry, geometry, tensor_on


class Change(Enum):
    """What has changed between two moments."""

    NO = "no"
    VERSION = "version"
    """The version. Nothing is known of the bytes."""
    BYTES = "bytes"
    LATER = "later"
    """That is still on a device. It is known when the backward call has ended."""


def change(before: Digest, now: Digest, *, moved: bool = False, waits: bool = False) -> Change:
    """Return what two fingerprints of a tensor say; without the first one, what its version says, which has `moved`.

    With `waits` the program waits for the device, and the answer is never LATER.
    """
    if before is None:
        return Change.VERSION if moved else Change.NO
    if isinstance(before, OnDevice) and (now is None or not waits):
        return Change.NO if now is None else Change.LATER  # the bytes on a device may not be readable now
    return Change.NO if same(now, before) else Change.BYTES


class Witness(tensor_state.Weak[torch.Tensor]):
    """The memory of a tensor at one moment, to look at it again. It keeps no memory alive.

    It is a weak reference to the tensor itself, as a Handle is: one object less for each. It has the `key` of the
    storage, which says nothing once the `storage` is gone, and the version. `digest` is the fingerprint of its bytes,
    and `where` its geometry; None where they are not needed.

    The native part makes one without `__init__` (native/regions.cpp).
    """

    __slots__ = ("__weakref__", "digest", "key", "storage", "version", "where")
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __new__(cls, key: int, tensor: torch.Tensor, digest: Digest = None, where: Geometry | None = None) -> Self:
        return super().__new__(cls, tensor)

    def __init__(self, key: int, tensor: torch.Tensor, digest: Digest = None, where: Geometry | None = None) -> None:
        self.storage: storages.StorageRef = storages.storage_ref(tensor)
        self.version = tensor_state.version_of(tensor) or 0
        self.key, self.digest, self.where = key, digest, where

    def tensor(self) -> torch.Tensor | None:
        """Return the tensor; None once the program has dropped it."""
        return self()

    def is_below(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor lies on this memory now."""
        return storages.storage_key(tensor) == self.key and storages.is_at(self.storage, self.key)

    def still(self) -> torch.Tensor | None:
        """Return the tensor; None if it is gone, or shows other memory now."""
        tensor = self.tensor()
        return tensor if tensor is not None and self.is_below(tensor) and geometry(tensor) == self.where else None

    def now(self) -> torch.Tensor | None:
        """Return a tensor on the same bytes; None where nobody holds them any more."""
        with modes.aside():
            return None if self.where is None else tensor_on(self.storage, self.where)

    def digest_now(self) -> Digest:
        """Return the fingerprint of the bytes as they are now; None where nobody holds them any more."""
        now = self.now()
        return None if now is None else fingerprint(now)
