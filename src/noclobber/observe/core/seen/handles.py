"""The handle of a save: a weak reference with a detached alias, the version, and the place and node of the save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import ref

import torch

from noclobber.model.seen.live_saves import LiveSaves
from noclobber.observe.core.seen.records import Record, latest
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.torch_api.autograd import graph, native_saves
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import (
    NEVER,
    OUTSIDE,
    Contents,
    Digest,
    Shown,
    as_stored,
    fingerprint,
    fingerprint_aside,
    same,
    shown,
    stored_like,
)
from noclobber.observe.witness.layout import Geometry


class Handle(tensor_state.Weak[torch.Tensor]):
    """What the pack hook returns instead of the tensor: a weak reference to the saved tensor.

    The handle is the reference itself and does not hold one. The garbage collector visits everything that survives
    until backward again and again, so each object fewer per save counts (LSTMCell x 200, benchmarks/).

    `alias` is a detach: it shares storage and version counter, and makes no reference cycle with an output (measured on
    torch 2.13; `tests/observe/test_unchanged.py`). `version` is the version at save. `suspect` is None until a write
    that may overlap was seen: unpack takes the slow path from then on. `node` is the
    sequence number of the node that saves, unique within its thread. `moment` is the latest moment before the save
    (records.py). `digest` is the fingerprint of the bytes. Every save has one if contents are watched. Otherwise it is
    taken before a write to the save that need not move the version. `shown` is the way to take it again.
    """

    __slots__ = ("__weakref__", "alias", "digest", "moment", "node", "place", "shown", "suspect", "version")
    # A weak reference compares the tensors referred to. Handles compare by identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    alias: torch.Tensor
    version: int
    suspect: Suspect | None
    digest: Digest
    shown: Shown | None
    place: Place | None
    node: int
    moment: int
    field: str = ""
    """The name of what is saved, "ctx.x", if the node does not know it; else empty."""
    unchecked: Literal["", "hooks", "ctx", "policy"] = ""
    """Why autograd does not check the version; empty if it does."""
    applied: Place | None = None
    """Where the Function was called that keeps the tensor on its ctx; None for other saves."""

    follows: bool = False
    """Whether a later read gets what the tensor holds then, on any memory, and not the memory of the save."""
    connected: native_saves.Save | None = None
    """PyTorch's own save of the same tensor, if bytes are preserved and its place in the graph matters; else None."""

    def tensor(self) -> torch.Tensor | None:
        """Return the tensor that was saved; None if it is gone."""
        return self()

    def suspected(self) -> Suspect:
        """Return what is known of the writes that may have changed the bytes, from now on if there were none."""
        if self.suspect is None:
            self.suspect = Suspect()
        return self.suspect

    @property
    def kept(self) -> torch.Tensor | None:
        """The copy of the saved bytes, made before a write changed them; None if there is none."""
        return None if self.suspect is None else self.suspect.kept

    @property
    def writes(self) -> list[tuple[Record, int]]:
        """The writes that may have changed the bytes, each with the version before it."""
        return [] if self.suspect is None else self.suspect.writes


class OfView(Handle):
    """A save of a view. Autograd makes a new node for the view when its base enters the graph."""

    __slots__ = ()


class OfMadeAside(OfView):
    """A save of a view outside of the graph that was made with gradients off.

    If its base enters the graph, PyTorch makes no node for the view: it raises (native_saves.said_of_a_view).
    """

    __slots__ = ()


class OfOneOfSeveral(OfView):
    """A save of one of several views outside of the graph. PyTorch raises of it too, in other words."""

    __slots__ = ()


VIEWS_OUTSIDE: Mapping[str, type[OfView]] = {"NO_GRAD_MODE": OfMadeAside, "MULTI_OUTPUT_NODE": OfOneOfSeveral}


class Argument(Handle):
    """An argument that a checkpointed region keeps. No node saves it: `node` is the last node before the region."""

    __slots__ = ()


class Given(NamedTuple):
    """An argument of a checkpointed region as the program gave it, and whether it has a node that it can lose."""

    argument: Any
    had_node: bool


class Needed(Argument):
    """A tensor that a checkpointed region can reach, as it was when the region's forward began. Used to preserve bytes.

    `key` is the storage that it lay on, and `where` its geometry. `in_forward` returns True while the region's forward
    runs. The handle is `unread` once that forward has written it as batch norm's statistics: training reads none.
    """

    __slots__ = ("connected", "in_forward", "key", "standing", "unread", "where")

    follows = True
    in_forward: Callable[[], bool]
    key: int
    standing: tuple[bool, object]
    """Whether the tensor required a gradient, and what identifies its place in the graph."""
    connected: native_saves.Save | None
    """PyTorch's own save of a tensor that was made in the graph, if its place there matters; else None."""
    unread: bool
    where: Geometry


def is_result(handle: Handle, producer: Any) -> bool:
    """Return True if the node that made the tensor (`producer`) also saves it, as its own result.

    The numbers of nodes cannot decide this: each thread counts its own, and if PyTorch made a new node for a view in
    between, the handle has the number of that node (torch 2.13; tests/observe/detectors/test_swapped.py,
    test_assigned.py). They do decide it for tensors on a ctx, which no node saves.
    """
    if isinstance(handle, Argument):
        return False
    of_graph = type(handle) is Handle or isinstance(handle, OfView)
    return graph.keeps(producer, handle) or (not of_graph and bool(handle.node == producer._sequence_nr()))


class Aside(Handle):
    """A handle beside PyTorch's own save, which exists independently of noclobber."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Suspect:
    """What is known of a handle once writes may have changed its bytes."""

    writes: list[tuple[Record, int]] = field(default_factory=list)
    """The writes, each with the version before it."""
    base: ref[torch.Tensor] | None = None
    """The tensor that was written outside of the graph, if the saved view of it is gone; else None."""
    blind: bool = False
    """Whether a write that may move no version met bytes that cannot be compared: there are none in a fake run."""
    made: tuple[str, int] | None = None
    """The name of the node, and its output, that brought the tensor into the graph, if a write did; else None."""
    of_function: bool = False
    """Whether the write, made with gradients off, was to a view that a custom Function returned."""
    detached: bool = False
    """Whether a `detach_` of the saved tensor was seen after which PyTorch refuses to unpack it."""
    detached_at: Place | None = None
    """Where that was called; None if it is not known."""
    kept: torch.Tensor | None = None
    """A copy of the bytes from before the first write that changes them; None if there is none."""
    freed: bool = False
    """Whether the program has freed the memory, and no write has been let through since that would be stopped else."""
    spared: bool = False
    """Whether, while bytes are preserved, writes moved the version but changed no bytes of the save."""
    theirs: native_saves.Save | None = None
    """PyTorch's own save with the hooks that the program registered on it, used instead of the alias; else None."""


Kind = TypeVar("Kind", bound=Handle)


def made(
    kind: type[Kind],
    tensor: torch.Tensor,
    alias: torch.Tensor,
    node: int,
    place: Place | None,
    digest: Digest = None,
    gone: Callable[[Any], object] | None = None,
) -> Kind:
    """Return a handle of a tensor as it is now. `gone` is called when the tensor dies."""
    handle = kind(tensor, gone)
    handle.alias, handle.version, handle.digest = alias, alias._version, digest
    handle.suspect = handle.shown = None
    handle.node, handle.place, handle.moment = node, place, latest[0]
    return handle


def handle_of(tensor: torch.Tensor, node: int, place: Place | None, digest: Digest) -> Handle:
    return made(Aside, tensor, alias_of(tensor), node, place, digest)


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached alias; the tensor itself if its subclass cannot detach. Then it lives until the graph dies."""
    try:
        return tensor_state.detach(tensor)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # the last of a lazy parameter
        return tensor


def alias_elsewhere(tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor that was given other memory; `old` is the alias from before.

    If that memory was made in inference mode, a detach of the tensor is an inference tensor too. It does not share the
    version counter, and the engine refuses it from a hook (torch 2.13; tests/observe/core/test_inference.py).
    """
    if not tensor.is_inference():
        return alias_of(tensor)
    with modes.aside():
        alias, shown = tensor_state.detach(old), torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        shown.set_(storages.storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        tensor_state.give(alias, shown)
    return alias


def compare(contents: Contents | None, handles: Iterable[Handle]) -> None:
    """Take the fingerprints that saves have gone without (`Contents.at_pack`), before something that the version does
    not tell: foreign code gets their bytes, or the version moves and no byte changes."""
    if contents is not None:
        for handle in handles:
            if handle.digest is None and not isinstance(handle, Needed):
                handle.digest = fingerprint_aside(handle.alias)


def moved(handle: Handle, alias: torch.Tensor, live: LiveSaves[Handle]) -> None:
    """Put a save on other memory, shown by `alias`, also in the live table.

    A fingerprint depends on the order of the elements and on marks (`stored_like`). If these differ, it is taken again
    from the old bytes. It becomes NEVER if the old bytes have changed since the save.
    """
    old, before = handle.alias, handle.digest
    handle.alias = alias
    live.moved(handle, old)
    if before is None:
        return
    handle.shown = shown(alias)
    if handle.shown is None and ((saved := handle()) is None or not saved.requires_grad):
        handle.shown = OUTSIDE
    if (old.shape, old.dtype) != (alias.shape, alias.dtype):
        handle.digest = NEVER
    elif stored_like(old) != stored_like(alias):
        if not same(fingerprint(old), before):
            handle.digest = NEVER
            return
        with modes.aside():
            handle.digest = fingerprint(as_stored(as_stored(alias).clone(), alias).copy_(old))


def note_base(handles: list[Handle], tensor: torch.Tensor) -> None:
    """Note a tensor that is about to be overwritten or given other memory with its saves as views that are gone.

    Only for a tensor outside of the graph: when it enters the graph, autograd makes nodes of their own for its views.
    """
    if tensor.requires_grad:
        return
    base = tensor_state.whole(tensor)
    for handle in handles:
        if type(handle) is not Handle and handle() is None:
            marked = handle.suspected()
            if marked.base is None or marked.base() is None:
                marked.base = tensor_state.Weak(base)


def of_view_outside(tensor: torch.Tensor) -> OfView:
    return VIEWS_OUTSIDE.get(tensor_state.creation_of(tensor), OfView)(tensor)


def versioned(tensor: torch.Tensor) -> Handle:
    """Return a handle that knows only the version."""
    with modes.plain():
        return made(Handle, tensor, alias_of(tensor), -1, None)
