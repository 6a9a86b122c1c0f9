"""The save registry: what autograd keeps, as handles with a detached alias, the version, the saver's place and node."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, Protocol
from weakref import WeakSet, ref

import torch

from noclobber.model.error import ClobberError
from noclobber.model.live_saves import LiveSaves
from noclobber.observe.core.fingerprints import (
    NEVER,
    Contents,
    Digest,
    Shown,
    digest_of,
    fingerprint,
    hash_of,
    same,
    shown,
)
from noclobber.observe.core.records import geometry, latest
from noclobber.observe.core.sites import KINDS, SKIP, USER, Place, place_of
from noclobber.observe.torch_api import graph, native_saves, private
from noclobber.observe.torch_api.frames import passed_over

HISTORY = 16_384
"""Places of past saves kept for graphs that were freed, newest last."""


class Handle(private.Weak[torch.Tensor]):
    """What the pack hook returns instead of the tensor: a weak reference to the very tensor that is saved.

    It is the reference itself rather than an object that has one, since what survives until backward is looked at by
    the garbage collector again and again: each object fewer per save counted (LSTMCell x 200, benchmarks/).

    `alias` is a detach: it shares storage and version counter and makes no reference cycle with an output (measured on
    torch 2.13; `tests/observe/test_unchanged.py`). `version` is the version at save, or a Suspect once a write that may
    overlap was seen: comparing it with the counter then fails and leads unpack to the slow path. `node` is the sequence
    number of the node that saves, unique within its thread; `moment` is the latest before it (records.py). `digest` is
    the fingerprint of the bytes: of all saves where contents are watched, else of those that a write met which need not
    move the version, taken before that write. `shown` is how to take it again.
    """

    __slots__ = ("__weakref__", "alias", "digest", "moment", "node", "place", "shown", "version")
    # Not those of the tensors referred to.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    alias: torch.Tensor
    version: int | Suspect
    digest: Digest
    shown: Shown | None
    place: Place | None
    node: int
    moment: int
    field: str = ""
    """What is saved, where the node does not tell: "ctx.x"."""
    unchecked: Literal["", "hooks", "ctx"] = ""
    """Why PyTorch does not check the version, where it does not."""
    applied: Place | None = None
    """Where the Function was called that keeps it on its ctx."""

    follows: bool = False
    """Whether what is read later is what the tensor holds then, wherever that lies, and not the memory of the save."""
    connected: Any = None
    """PyTorch's own save beside it, where bytes are preserved and its place in the graph matters."""

    def tensor(self) -> torch.Tensor | None:
        """The tensor that was saved, if it is still there."""
        return self()


class OfView(Handle):
    """A save of a view. Autograd makes its node anew where what it is a view of enters the graph."""

    __slots__ = ()


class Argument(Handle):
    """An argument that a checkpointed region keeps. No node saves it: `node` is the last one before the region."""

    __slots__ = ()


class ArgumentOfNode(Argument):
    """The same on torch 2.10 and 2.11: a custom Function of PyTorch's own keeps the arguments, and refuses none."""

    __slots__ = ()


class Needed(Argument):
    """A tensor that a checkpointed region can reach, where bytes are preserved: as it was when its forward began.

    `key` is the storage that it lay on, and `where` its geometry. `in_forward` tells whether the region's own forward
    is under way. Once that has written batch norm's statistics it is `unread`: training does not read them.
    """

    __slots__ = ("connected", "in_forward", "key", "standing", "unread", "where")

    follows = True
    in_forward: Callable[[], bool]
    key: int
    standing: tuple[bool, Any]
    """Whether it required a gradient, and what tells where in the graph it was."""
    connected: Any
    """PyTorch's own save of what was made in the graph, where its place in that matters."""
    unread: bool
    where: Any


def is_result(handle: Handle, producer: Any) -> bool:
    """Whether the node that made a tensor is what saves it: its own result.

    Numbers of nodes do not tell: each thread counts its own, and where PyTorch made the node of a view anew on the way,
    the handle has the number of that (torch 2.13; tests/observe/detectors/test_swapped.py, test_assigned.py). They do
    for what is kept on a ctx, which is no save.
    """
    if isinstance(handle, Argument):
        return False
    of_graph = type(handle) in (Handle, OfView)
    return graph.keeps(producer, handle) or (not of_graph and bool(handle.node == producer._sequence_nr()))


class Aside(Handle):
    """What was kept besides PyTorch's own save of it, which holds it or not, whatever noclobber does."""

    __slots__ = ()


class Suspect:
    """A handle's version together with the writes that may have changed its bytes."""

    __slots__ = ("base", "kept", "made", "of_function", "refuses", "spared", "theirs", "version", "writes")

    def __init__(self, version: int) -> None:
        self.version = version
        self.writes: list[Any] = []
        self.base: ref[torch.Tensor] | None = None
        """What was written while it was not in the graph, where the tensor that was saved is gone."""
        self.made: tuple[str, int] | None = None
        """The node, and which of its outputs, that brought what was saved into the graph, where a write did."""
        self.of_function = False
        """Whether what was written, where no gradient is recorded, is a view that a custom Function returned."""
        self.refuses: str | None = None
        """The error that PyTorch would raise when unpacking, where it is not about versions."""
        self.kept: torch.Tensor | None = None
        """A copy of the bytes, made before the first write that changes them, where they are preserved."""
        self.spared = False
        """Whether writes moved the version, while bytes are preserved, that change others than those of the save."""
        self.theirs: Any = None
        """PyTorch's own save under the hooks that the program registered on this one, in place of what ours kept."""


def version_at_save(handle: Handle) -> int:
    """The version counter when the tensor was saved."""
    version = handle.version
    return version.version if isinstance(version, Suspect) else version


def handle_of(tensor: torch.Tensor, node: int, place: Place | None, digest: Digest) -> Handle:
    """A handle made outside of our own pack hook."""
    handle = Aside(tensor)
    handle.alias = alias_of(tensor)
    handle.version, handle.digest, handle.shown = handle.alias._version, digest, None
    handle.node, handle.place, handle.moment = node, place, latest[0]
    return handle


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """A detached alias. A subclass that can't detach is kept itself: its outputs then live until the graph dies."""
    try:
        return tensor.detach()
    except (RuntimeError, NotImplementedError, TypeError):
        return tensor


def alias_elsewhere(tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """An alias of a tensor that was given other memory; `old` is the one that it had before.

    Where that memory was made in inference mode, so would be a detach: it would not share the tensor's version counter,
    and the engine refuses to take it from a hook (torch 2.13; tests/observe/core/test_inference.py).
    """
    if not tensor.is_inference():
        return alias_of(tensor)
    with private.aside():
        alias, shown = old.detach(), torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        shown.set_(private.storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        private.give(alias, shown)
    return alias


def moved(handle: Handle, alias: torch.Tensor) -> None:
    """The save lies on other memory now. Fingerprints are of bytes in their order: it is taken anew for another layout,
    of the old bytes where these are still what was saved."""
    old, before = handle.alias, handle.digest
    handle.alias = alias
    if before is None:
        return
    handle.shown = shown(alias)
    (_, *was), (_, *is_now) = geometry(old), geometry(alias)
    if (was[0], was[2]) != (is_now[0], is_now[2]):
        handle.digest = NEVER
    elif was != is_now:
        if not same(fingerprint(old), before):
            handle.digest = NEVER
            return
        with private.aside():
            handle.digest = fingerprint(torch.empty_like(alias).copy_(old))


def note_base(handles: list[Handle], tensor: torch.Tensor) -> None:
    """A tensor is about to be overwritten, or given other memory. Where it is not in the graph, note it with saves of
    views that are gone: once it is, autograd makes these nodes of their own."""
    if tensor.requires_grad:
        return
    base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    for handle in handles:
        if type(handle) is not Handle and handle() is None:
            marked = handle.version
            if not isinstance(marked, Suspect):
                marked = handle.version = Suspect(marked)
            if marked.base is None or marked.base() is None:
                marked.base = private.Weak(base)


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


class ForeignSaves(Protocol):
    """Who is told of saves while some memory is in the hands of foreign code."""

    handed: dict[int, Any]
    """The storages that are; empty most of the time."""

    def saved(self, handle: Handle) -> None:
        """Called after a save, where anything is handed out."""


Hooks = tuple[Callable[[torch.Tensor], Handle], Callable[[Handle], torch.Tensor]]
"""What packs and what unpacks."""

_packs: WeakSet[Callable[[torch.Tensor], Handle]] = WeakSet()


def are_ours(pair: tuple[Any, Any] | None) -> bool:
    """Whether a pair of hooks is of noclobber: inside a node the engine has a stack of its own, which it drops with all
    that was done to it, so what is on a stack may be of another time."""
    return pair is not None and isinstance(pair[0], FunctionType) and pair[0] in _packs


def claim(pack: Callable[[torch.Tensor], Handle]) -> None:
    """Count the pairs with this pack hook among ours."""
    _packs.add(pack)


def hooks(
    live: LiveSaves[Handle],
    history: History,
    changed: Callable[[Handle, Digest], torch.Tensor | None],
    contents: Contents | None,
    watch: ForeignSaves | None,
    failed: Callable[[Exception], None],
) -> Hooks:
    """The pack and unpack hooks of one thread, with `contents` to look at the bytes as well.

    `changed(handle, digest)` is called where the version no longer matches, or the fingerprint at read. `failed` is
    told where noclobber itself fails: then PyTorch's check of the version is what is left of this save.
    Inside pack the next sequence number minus one is that of the node being built (torch_api/self_tests.py tries it).
    PyTorch does no version check of its own once hooks are set (saved_variable.cpp), so unpack must.
    """
    new, of_view, reference, unsorted, kinds = Handle, OfView, ref, live.unsorted, KINDS
    add_node, add_place = history.nodes.append, history.places.append
    next_node, frame_of, now = private.next_node, sys._getframe, latest
    at_save = contents.at_save if contents is not None else None
    address = private.address
    handed = {} if watch is None else watch.handed

    def pack(tensor: torch.Tensor) -> Handle:
        try:
            handle = of_view(tensor) if tensor._is_view() else new(tensor)
            try:
                alias = tensor.detach()
            except (RuntimeError, NotImplementedError, TypeError):
                alias = alias_of(tensor)
            handle.alias = alias
            handle.version = alias._version
            if at_save is None:
                handle.digest = None
            else:
                handle.shown = memory = shown(alias)
                if memory is None:
                    handle.digest = at_save(alias)
                else:
                    handle.digest = hash_of(memory[0]) if memory[2] is None else digest_of(memory)
            handle.node = node = next_node() - 1
            handle.moment = now[0]
            try:
                frame: Any = frame_of(1)
            except ValueError:  # a thread without Python frames (sites.frame_above)
                frame = frame_of()
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
            if handed and watch is not None:
                watch.saved(handle)
            return handle
        except Exception as failure:
            failed(failure)
            return _versioned(tensor)

    def unpack(handle: Handle) -> torch.Tensor:
        alias = handle.alias
        if alias._version != handle.version:
            try:
                if (found := changed(handle, None)) is not None:
                    return found
            except ClobberError:
                raise
            except Exception as failure:
                failed(failure)
            return checked(handle)
        return alias

    private.never_compile(pack)
    private.never_compile(passed_over(unpack))
    claim(pack)
    if contents is None:
        return pack, unpack
    at_read = contents.at_read

    def unpack_and_compare(handle: Handle) -> torch.Tensor:
        alias = handle.alias
        try:
            memory = handle.shown
            if memory is None or address(alias) != memory[1]:  # a storage may have been given back meanwhile
                version = handle.version
                digest = None if isinstance(version, Suspect) and version.kept is not None else at_read(alias)
            else:
                digest = hash_of(memory[0]) if memory[2] is None else digest_of(memory)
            if alias._version == handle.version and digest == handle.digest:
                return alias
            if (found := changed(handle, digest)) is not None:
                return found
        except ClobberError:
            raise
        except Exception as failure:
            failed(failure)
        return checked(handle)

    private.never_compile(passed_over(unpack_and_compare))
    return pack, unpack_and_compare


def _versioned(tensor: torch.Tensor) -> Handle:
    """A handle that knows the version alone."""
    try:
        alias = tensor.detach()
    except (RuntimeError, NotImplementedError, TypeError):
        alias = tensor
    handle = Handle(tensor)
    handle.alias, handle.version, handle.digest, handle.shown = alias, alias._version, None, None
    handle.node, handle.place, handle.moment = -1, None, latest[0]
    return handle


_SAMPLE = " is at version 1; expected version 0 instead."
_STALE = "one of the variables needed for gradient computation has been modified by an inplace operation"


@passed_over
def checked(handle: Handle) -> torch.Tensor:
    """A save as PyTorch would give it without hooks. Raises what it would raise where its version moved."""
    marked = handle.version
    version = marked.version if isinstance(marked, Suspect) else marked
    if isinstance(marked, Suspect) and marked.theirs is not None:
        return native_saves.unpacked(marked.theirs)
    if isinstance(marked, Suspect) and marked.kept is not None:
        return marked.kept
    if handle.alias._version != version:
        versions = f" is at version {handle.alias._version}; expected version {version} instead."
        try:
            said = native_saves.said_of_a_stale(handle.alias)
        except NotImplementedError:  # PyTorch's own
            raise
        except Exception:  # there are no better words, then
            said = f"{_STALE}: [{handle.alias.type()} {list(handle.alias.shape)}]{_SAMPLE}"
        raise ClobberError(said.replace(_SAMPLE, versions))
    return handle.alias


def originals(function: Any, unpacked: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `ctx.saved_tensors` gives without hooks: the very inputs that were saved, not new tensors on their bytes.

    Code keeps gradients and marks as attributes of parameters and finds them again in backward. In `jvp` it gives what
    `save_for_forward` was given, which no hook packs (torch 2.13; tests/observe/core/test_saved_tensors.py).
    """
    for_forward: tuple[Any, ...] | None = function.saved_for_forward
    if for_forward is unpacked:
        return unpacked
    return tuple(
        _original(function, raw, tensor) for raw, tensor in zip(function._raw_saved_tensors, unpacked, strict=True)
    )


def _original(function: Any, raw: Any, unpacked: Any) -> Any:
    handle = raw.data if unpacked is not None else None
    if not isinstance(handle, Handle) or unpacked.grad_fn is function:
        return unpacked
    tensor = handle.tensor()
    if tensor is None or private.storage_key(tensor) != private.storage_key(handle.alias):
        return unpacked  # its bytes were kept, or it was given others
    return tensor
