"""The save registry: what autograd keeps, as handles with a detached alias, the version, the saver's place and node."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import xxhash

from noclobber.model.clobber import LiveSaves
from noclobber.observe import internals
from noclobber.observe.sites import KINDS, SKIP, USER, Place, place_of

HISTORY = 16_384
"""Places of past saves kept for graphs that were freed, newest last."""


class Handle:
    """What the pack hook returns instead of the tensor.

    `alias` is a detach: it shares storage and version counter and makes no reference cycle with an output (measured on
    torch 2.13; `tests/observe/test_unchanged.py`). `version` is the version at save, or a Suspect once a write that may
    overlap was seen: comparing it with the counter then fails and leads unpack to the slow path. `tensor` refers weakly
    to the very tensor that was saved. `node` is the sequence number of the node that saves, unique within its thread.
    """

    __slots__ = ("__weakref__", "alias", "node", "place", "tensor", "version")

    alias: torch.Tensor
    version: int | Suspect
    tensor: ref[torch.Tensor]
    place: Place | None
    node: int


class Suspect:
    """A handle's version together with the writes that may have changed its bytes."""

    __slots__ = ("digest", "refuses", "version", "writes")

    def __init__(self, version: int) -> None:
        self.version = version
        self.digest: int | None = None
        """The fingerprint of the bytes before the first write that may touch them and need not move the version."""
        self.writes: list[Any] = []
        self.refuses: str | None = None
        """The error that PyTorch would raise when unpacking, where it is not about versions."""

    @property
    def harmless(self) -> bool:
        """Whether only a moved version can tell of a change: every write so far shares the counter of the save."""
        return self.digest is None and self.refuses is None


def version_at_save(handle: Handle) -> int:
    """The version counter when the tensor was saved."""
    version = handle.version
    return version.version if isinstance(version, Suspect) else version


def fingerprint(tensor: torch.Tensor) -> int | None:
    """xxh3_64 of a tensor's bytes in index order; None where there are none to read (meta, fake, sparse, opaque)."""
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        return xxhash.xxh3_64_intdigest(plain.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """A detached alias. A subclass that can't detach is kept itself: its outputs then live until the graph dies."""
    try:
        return tensor.detach()
    except (RuntimeError, NotImplementedError, TypeError):
        return tensor


class History:
    """The nodes of past saves and their places, newest last: two rows, as a pair each would cost a tuple more."""

    __slots__ = ("nodes", "places")

    def __init__(self) -> None:
        self.nodes: deque[int] = deque(maxlen=HISTORY)
        self.places: deque[Place | None] = deque(maxlen=HISTORY)

    def place_of(self, node: int) -> Place | None:
        """Where a node last saved; None once forgotten."""
        rows = zip(reversed(self.nodes), reversed(self.places), strict=True)
        return next((place for number, place in rows if number == node), None)


def hooks(
    live: LiveSaves[Handle], history: History, changed: Callable[[Handle], torch.Tensor]
) -> tuple[Callable[[torch.Tensor], Handle], Callable[[Handle], torch.Tensor]]:
    """The pack and unpack hooks of one thread. `changed(handle)` is called where the version no longer matches.

    Inside pack the next sequence number minus one is that of the node being built (capture-mechanisms 3 (ii); torch
    2.13). PyTorch does no version check of its own once hooks are set (saved_variable.cpp), so unpack must.
    """
    new, reference, unsorted, kinds = Handle, ref, live.unsorted, KINDS
    add_node, add_place = history.nodes.append, history.places.append
    next_node, frame_of = internals.next_node, sys._getframe

    def pack(tensor: torch.Tensor) -> Handle:
        handle = new()
        try:
            alias = tensor.detach()
        except (RuntimeError, NotImplementedError, TypeError):
            alias = alias_of(tensor)
        handle.alias = alias
        handle.version = alias._version
        handle.tensor = reference(tensor)
        handle.node = node = next_node() - 1
        frame: Any = frame_of(1)
        code = frame.f_code
        # The common way up, through PyTorch's own frames to a user's, without a call.
        while kinds.get(code.co_filename) == SKIP and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        place = (code, frame.f_lasti, None) if kinds.get(code.co_filename) == USER else place_of(frame)
        handle.place = place
        unsorted.append(reference(handle))
        if len(unsorted) > live.limit:
            live.sweep()
        add_node(node)
        add_place(place)
        return handle

    def unpack(handle: Handle) -> torch.Tensor:
        alias = handle.alias
        if alias._version != handle.version:
            return changed(handle)
        return alias

    return pack, unpack


def originals(function: Any, unpacked: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `ctx.saved_tensors` gives without hooks: the very inputs that were saved, not new tensors on their bytes.

    Code keeps gradients and marks as attributes of parameters and finds them again in backward.
    """
    return tuple(
        _original(function, raw, tensor) for raw, tensor in zip(function._raw_saved_tensors, unpacked, strict=True)
    )


def _original(function: Any, raw: Any, unpacked: Any) -> Any:
    handle = raw.data if unpacked is not None else None
    if not isinstance(handle, Handle) or unpacked.grad_fn is function:
        return unpacked
    tensor = handle.tensor()
    return unpacked if tensor is None else tensor
