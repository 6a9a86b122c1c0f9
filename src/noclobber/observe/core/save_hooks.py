"""The save registry: a handle for each save, with a detached alias, the version, and the place and node of the save."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from weakref import WeakSet, ref

import torch
from torch.nn.parameter import is_lazy

from noclobber.model.error import ClobberError
from noclobber.model.live_saves import LiveSaves
from noclobber.observe.core.collector import MANY, leave_out
from noclobber.observe.core.records import Record, latest
from noclobber.observe.core.running_statistics import STATISTIC, is_read_by_its_node, mark, under_way
from noclobber.observe.core.sites import KINDS, SKIP, USER, Place, place_of
from noclobber.observe.torch_api import graph, native_saves, private
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.witness.digests import (
    NEVER,
    OUTSIDE,
    Contents,
    Digest,
    Shown,
    as_stored,
    digest_of,
    fingerprint,
    hash_of,
    same,
    shown,
    stored_like,
)
from noclobber.observe.witness.layout import Geometry

if TYPE_CHECKING:
    from torch.autograd.function import BackwardCFunction

HISTORY = 16_384
"""Places of past saves that are kept for graphs that were freed."""
Pair = tuple[Callable[..., object], Callable[..., object]]
"""A pack and an unpack hook, noclobber's or the program's."""


class Handle(private.Weak[torch.Tensor]):
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


class Detached(NamedTuple):
    """A `detach_`, and where it was called; None if that is not known."""

    place: Place | None


class Suspect:
    """What is known of a handle once writes may have changed its bytes."""

    __slots__ = ("base", "detached", "kept", "made", "of_function", "spared", "theirs", "writes")

    def __init__(self) -> None:
        self.writes: list[tuple[Record, int]] = []
        """The writes, each with the version before it."""
        self.base: ref[torch.Tensor] | None = None
        """The tensor that was written outside of the graph, if the saved view of it is gone; else None."""
        self.made: tuple[str, int] | None = None
        """The name of the node, and its output, that brought the tensor into the graph, if a write did; else None."""
        self.of_function = False
        """Whether the write, made with gradients off, was to a view that a custom Function returned."""
        self.detached: Detached | None = None
        """The `detach_` of the saved tensor after which PyTorch refuses to unpack it; None if there was none."""
        self.kept: torch.Tensor | None = None
        """A copy of the bytes from before the first write that changes them; None if there is none."""
        self.spared = False
        """Whether, while bytes are preserved, writes moved the version but changed no bytes of the save."""
        self.theirs: native_saves.Save | None = None
        """PyTorch's own save with the hooks that the program registered on it, used instead of the alias; else None."""


def handle_of(tensor: torch.Tensor, node: int, place: Place | None, digest: Digest) -> Handle:
    """Return a handle made outside of our pack hook."""
    handle = Aside(tensor)
    handle.alias = alias_of(tensor)
    handle.version, handle.suspect, handle.digest, handle.shown = handle.alias._version, None, digest, None
    handle.node, handle.place, handle.moment = node, place, latest[0]
    return handle


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached alias; the tensor itself if its subclass cannot detach. Then it lives until the graph dies."""
    try:
        return tensor.detach()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # the last of a lazy parameter
        return tensor


def alias_elsewhere(tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor that was given other memory; `old` is the alias from before.

    If that memory was made in inference mode, a detach of the tensor is an inference tensor too. It does not share the
    version counter, and the engine refuses it from a hook (torch 2.13; tests/observe/core/test_inference.py).
    """
    if not tensor.is_inference():
        return alias_of(tensor)
    with private.aside():
        alias, shown = old.detach(), torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        shown.set_(private.storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        private.give(alias, shown)
    return alias


def compare(contents: Contents | None, handles: Iterable[Handle]) -> None:
    """Take the fingerprints that saves have gone without (`Contents.only_foreign`), before something that the version
    does not tell: foreign code gets their bytes, or the version moves and no byte changes."""
    if contents is not None and contents.only_foreign:
        for handle in handles:
            if handle.digest is None and not isinstance(handle, Needed):
                with private.aside():
                    handle.digest = fingerprint(handle.alias)


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
        with private.aside():
            handle.digest = fingerprint(as_stored(as_stored(alias).clone(), alias).copy_(old))


def note_base(handles: list[Handle], tensor: torch.Tensor) -> None:
    """Note a tensor that is about to be overwritten or given other memory with its saves as views that are gone.

    Only for a tensor outside of the graph: when it enters the graph, autograd makes nodes of their own for its views.
    """
    if tensor.requires_grad:
        return
    base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    for handle in handles:
        if type(handle) is not Handle and handle() is None:
            marked = handle.suspected()
            if marked.base is None or marked.base() is None:
                marked.base = private.Weak(base)


class History:
    """The nodes of past saves and their places, newest last. Two rows, as pairs would cost a tuple per save."""

    __slots__ = ("nodes", "places")

    def __init__(self) -> None:
        self.nodes: deque[int] = deque(maxlen=HISTORY)
        self.places: deque[Place | None] = deque(maxlen=HISTORY)

    def place_of(self, node: int) -> Place | None:
        """Return where a node last saved; None if that is not known (any more)."""
        rows = zip(reversed(self.nodes), reversed(self.places), strict=True)
        return next((place for number, place in rows if number == node), None)


class Arming(Protocol):
    """What the hooks ask of the context."""

    armings: int
    """How often noclobber has begun to see. It differs once hooks are older than what is seen now."""
    late: Callable[[torch.Tensor], Handle]
    """Returns the handle of a save that older hooks are called for."""


class ForeignSaves(Protocol):
    """What is called at saves while foreign code holds some memory."""

    @property
    def handed(self) -> Mapping[int, object]:
        """The storages that foreign code may hold, by key; the same object for good, and empty most of the time."""

    def saved(self, handle: Handle) -> None:
        """Called after a save while any memory is handed out."""


Hooks = tuple[Callable[[torch.Tensor], Handle], Callable[[Handle], torch.Tensor]]
"""The pack hook and the unpack hook."""

_packs: WeakSet[Callable[[torch.Tensor], Handle]] = WeakSet()


def are_ours(pair: Pair | None) -> bool:
    """Return True if a pair of hooks is noclobber's.

    Inside a node the engine has a stack of its own and drops it afterwards with all changes. So a pair on a stack may
    be an older one of ours.
    """
    return pair is not None and isinstance(pair[0], FunctionType) and pair[0] in _packs


def claim(pack: Callable[[torch.Tensor], Handle]) -> None:
    """Mark pairs with this pack hook as noclobber's."""
    _packs.add(pack)


def hooks(
    context: Arming,
    live: LiveSaves[Handle],
    history: History,
    changed: Callable[[Handle, Digest], torch.Tensor | None],
    contents: Contents | None,
    watch: ForeignSaves | None,
    failed: Callable[[Exception], None],
) -> Hooks:
    """Return the pack and unpack hooks of one thread. With `contents` they compare the bytes as well.

    `changed(handle, digest)` is called if the version does not match at read, or the fingerprint does not. `failed` is
    called if noclobber itself fails: then this save only gets PyTorch's check of the version.
    Inside pack, the next sequence number minus one is that of the node being built (torch_api/self_tests.py tries it).
    PyTorch does not check versions once hooks are set (saved_variable.cpp), so unpack must.
    """
    new, of_view, reference, unsorted, kinds = Handle, OfView, ref, live.unsorted, KINDS
    add_node, add_place = history.nodes.append, history.places.append
    next_node, frame_of, now = private.next_node, sys._getframe, latest
    at_save = contents.at_pack if contents is not None else None
    address, arming = private.address, context.armings
    handed = {} if watch is None else watch.handed
    views_are_visited = gc.is_tracked(STATISTIC[0])  # else `leave_out` would write beside them

    def pack(tensor: torch.Tensor) -> Handle:
        try:
            if context.armings != arming:
                return context.late(tensor)
            if not tensor._is_view():
                handle = new(tensor)
            else:
                handle = of_view(tensor) if tensor.requires_grad else of_view_outside(tensor)
            try:
                alias = tensor.detach()
            except (RuntimeError, NotImplementedError, TypeError):
                alias = alias_of(tensor)
            handle.alias = alias
            handle.version = alias._version
            handle.suspect = None
            if at_save is None:
                handle.digest = None
            else:
                handle.shown = memory = shown(alias)
                if memory is None:
                    handle.digest = at_save(alias)
                    if not tensor.requires_grad:
                        handle.shown = OUTSIDE
                else:
                    handle.digest = hash_of(memory[0]) if memory[2] is None else digest_of(memory)
                if under_way:
                    mark(handle)
            handle.node = node = next_node() - 1
            handle.moment = now[0]
            try:
                frame = frame_of(1)
            except ValueError:  # a thread without Python frames (frames.frame_above)
                frame = frame_of()
            code = frame.f_code
            # The common case: go up through PyTorch's own frames to a user's frame, without a call.
            while kinds.get(code.co_filename) == SKIP and frame.f_back is not None:
                frame = frame.f_back
                code = frame.f_code
            place = (code, frame.f_lasti, None) if kinds.get(code.co_filename) == USER else place_of(frame)
            handle.place = place
            filed = reference(handle)
            unsorted.append(filed)
            if len(unsorted) > live.limit:
                live.sweep()
            if live.alive > MANY:
                leave_out(handle)
                leave_out(filed)
                if at_save is not None and memory is not None and views_are_visited:
                    leave_out(memory)
                    leave_out(memory[0])
            add_node(node)
            add_place(place)
            if handed and watch is not None:
                watch.saved(handle)
            return handle
        except Exception as failure:
            if not is_lazy(tensor):  # a parameter without memory, which refuses every question
                failed(failure)
            return versioned(tensor)

    def unpack(handle: Handle) -> torch.Tensor:
        alias = handle.alias
        if alias._version != handle.version or handle.suspect is not None:
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
            # The storage may have been freed meanwhile. A save outside of these has no address, if it is sparse.
            if memory is None or memory is OUTSIDE or address(alias) != memory[1]:
                is_same = alias._version == handle.version and handle.suspect is None
                if memory is STATISTIC and is_same and is_read_by_its_node(handle):
                    return alias
                read = fingerprint if memory is OUTSIDE else at_read
                digest = None if handle.digest is None or handle.kept is not None else read(alias)
            else:
                digest = hash_of(memory[0]) if memory[2] is None else digest_of(memory)
            if alias._version == handle.version and digest == handle.digest and handle.suspect is None:
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


def of_view_outside(tensor: torch.Tensor) -> OfView:
    """Return a handle for a view that is not in the graph."""
    return VIEWS_OUTSIDE.get(private.creation_of(tensor), OfView)(tensor)


def versioned(tensor: torch.Tensor) -> Handle:
    """Return a handle that knows only the version."""
    with private.plain():
        handle, alias = Handle(tensor), alias_of(tensor)
        handle.alias, handle.version, handle.suspect, handle.digest = alias, alias._version, None, None
        handle.shown = None
    handle.node, handle.place, handle.moment = -1, None, latest[0]
    return handle


_SAMPLE = " is at version 1; expected version 0 instead."
_STALE = "one of the variables needed for gradient computation has been modified by an inplace operation"


@passed_over
def checked(handle: Handle) -> torch.Tensor:
    """Return what PyTorch would unpack without hooks. Raises ClobberError with PyTorch's words if the version moved."""
    if (suspect := handle.suspect) is not None:
        if suspect.theirs is not None:
            return native_saves.unpacked(suspect.theirs)
        if suspect.kept is not None:
            return suspect.kept
    if (version := handle.version) != handle.alias._version:
        versions = f" is at version {handle.alias._version}; expected version {version} instead."
        try:
            said = native_saves.said_of_a_stale(handle.alias)
        except NotImplementedError:  # PyTorch raises this too
            raise
        except Exception:  # PyTorch's own words are not to be had
            said = f"{_STALE}: [{handle.alias.type()} {list(handle.alias.shape)}]{_SAMPLE}"
        raise ClobberError(said.replace(_SAMPLE, versions))
    return handle.alias


def originals(
    function: BackwardCFunction, unpacked: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return what `ctx.saved_tensors` returns without hooks: the saved inputs, not new tensors on their bytes.

    Code keeps gradients and marks as attributes of parameters and looks for them in backward. In `jvp` it returns the
    arguments of `save_for_forward`, which no hook packs (torch 2.13; tests/observe/core/test_saved_tensors.py).
    """
    for_forward: tuple[torch.Tensor | None, ...] | None = function.saved_for_forward
    if for_forward is unpacked:
        return unpacked
    return tuple(
        _original(function, raw, tensor) for raw, tensor in zip(function._raw_saved_tensors, unpacked, strict=True)
    )


def _original(function: object, raw: Any, unpacked: Any) -> Any:
    handle = raw.data if unpacked is not None else None
    if not isinstance(handle, Handle) or unpacked.grad_fn is function:
        return unpacked
    tensor = handle.tensor()
    if tensor is None or private.storage_key(tensor) != private.storage_key(handle.alias):
        return unpacked  # its bytes were kept, or it was given other memory
    return tensor
