"""Stale casts: autocast keeps its cast of a weight for the whole region, also after a write has changed the weight.

Autocast keeps the first cast of each float32 leaf that requires a gradient until the outermost region of the thread
ends, and looks at no version (autocast_mode.cpp of torch 2.13; tests/observe/detectors/test_stale_casts.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from noclobber.model.seen.silent import StaleCast
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Backward, Record, record
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.core.writes import optimizer_steps
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import all_known

_MOST = 4096
"""Weights that are followed in one region, and stale casts that are remembered."""
_NEAR = 8
"""How many nodes after a cast are looked at for the place of its operator: the first of them that saves something."""


class _Changed(NamedTuple):
    """A write to the memory of a leaf. `leaf` is None while it is not known: the write went through `.data`."""

    noted: Record
    leaf: tensor_state.Weak[torch.Tensor] | None
    storage: storages.StorageRef
    """Tells whether the memory is still there: another leaf may get its address."""


class _Stale(NamedTuple):
    """A cast that autocast kept while the leaf changed. Nodes from `noted.node` on used it too late."""

    noted: Record
    leaf: tensor_state.Weak[torch.Tensor]
    dtype: torch.dtype
    place: Place | None
    """Where autocast made the cast."""


def arm(context: Context, way: Way) -> None:
    """Follow the weights that change inside of an autocast region, until the recorder disarms."""
    casts = StaleCasts(context)
    stepping = way.entry(casts.stepping)
    way.at_end(hook_stack.hook(register_optimizer_step_pre_hook, stepping).remove)
    way.add(context.unseen, way.entry(casts.written))
    context.calls.watch(way, casts.backward_begins)
    way.before(torch, "clear_autocast_cache", casts.clearing)


class StaleCasts:
    """The weights that changed while autocast may keep a cast of them, and the casts that are stale."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed: dict[int, _Changed] = {}
        """By the key of the storage. Autocast has one cache for all threads."""
        self._stale: dict[int, _Stale] = {}
        """By the number of the node of the cast."""

    def stepping(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note the weights that a step is about to change."""
        if not _in_region() or not self._context.thread.watched:
            return
        kind, place = type(optimizer), place_of(sys._getframe(1))
        written, step = optimizer_steps.written_by(kind.__name__), optimizer_steps.step_of(kind, place)
        for parameter in optimizer_steps.parameters(optimizer):
            if (key := storages.storage_key(parameter)) is not None:
                noted = record(written, parameter, key, place, self._context.thread)
                self._note(noted._replace(step=step), parameter)

    def written(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        """Note a write that autograd does not see."""
        thread = self._context.thread
        if _in_region() and thread.step is None and tensor.dtype is torch.float32:
            self._note(record(written, tensor, key, place_of(frame), thread), tensor)

    def _note(self, noted: Record, tensor: torch.Tensor) -> None:
        known, leaf = self._changed.get(noted.key), tensor_state.Weak(tensor) if _is_cached(tensor) else None
        if known is not None and (known.leaf is None or _is_older(_cast_of(known.leaf()), known.noted)):
            return
        if len(self._changed) < _MOST:
            self._changed[noted.key] = _Changed(noted, leaf, storages.storage_ref(tensor))

    def clearing(self) -> None:
        """Look once more at what the region has kept, before autocast drops it."""
        if self._changed:
            newest = engine_state.next_node()
            if any(newest > changed.noted.node for changed in self._changed.values()):
                self._find()
            self._changed.clear()

    def backward_begins(self, call: Backward) -> End | None:
        """Return what reports, at the end of a call, the stale casts that its graph has used."""
        if not self._changed and not self._stale:
            return None
        if call.outer is not None:  # it runs a region of a checkpoint again, which must get the cast of its forward
            return None
        nodes = list(graph.walk(graph.roots_of(call.outputs)))
        if _in_region():
            self._know_leaves(nodes)
            self._find()
        return self._context.bus.at_end(list(self._used(nodes, call)) if self._stale else [])

    def _know_leaves(self, nodes: list[Any]) -> None:
        """Find the leaves in a graph whose memory was written through another tensor."""
        unknown = {key for key, one in self._changed.items() if one.leaf is None and not one.storage.expired()}
        for node in nodes if unknown else ():
            leaf = getattr(node, "variable", None)
            if leaf is not None and (key := storages.storage_key(leaf)) in unknown and _is_cached(leaf):
                self._changed[key] = self._changed[key]._replace(leaf=tensor_state.Weak(leaf))

    def _find(self) -> None:
        """Find the changed leaves of which autocast holds an older cast with other values."""
        found = []
        for key, (noted, known, _) in list(self._changed.items()):
            leaf = known() if known is not None else None
            cast = _cast_of(leaf)
            if leaf is None or known is None or not _is_older(cast, noted):
                if known is not None:
                    del self._changed[key]  # autocast has no cast of it, or one of its new values
                continue
            with modes.aside():
                differs = torch.ne(tensor_state.detach(leaf).to(cast.dtype), tensor_state.detach(cast)).any()
            found.append((cast.grad_fn._sequence_nr(), _Stale(noted, known, cast.dtype, None), differs))
        for (number, stale, _), is_other in zip(found, all_known([one[2] for one in found]), strict=True):
            if is_other and len(self._stale) < _MOST:
                self._stale[number] = stale._replace(place=self._place_of(number))

    def _place_of(self, number: int) -> Place | None:
        places = (self._context.memory.place_of(near) for near in range(number, number + _NEAR))
        return next((place for place in places if place is not None), None)

    def _used(self, nodes: list[Any], call: Backward) -> Iterator[StaleCast]:
        """Yield the stale casts that nodes of a graph used after the weight had changed, each once."""
        found: set[int] = set()
        for user in nodes:
            for maker, _ in user.next_functions:
                number = maker._sequence_nr() if maker is not None else -1
                stale = self._stale.get(number)
                if (
                    stale is None
                    or number in found
                    or user._sequence_nr() < stale.noted.node
                    or not _is_cast_of(maker, stale.leaf())
                ):
                    continue
                found.add(number)
                leaf = maker.next_functions[0][0].variable
                about = clobbers.tensor_of(leaf)
                used, dtype = self._place_of(user._sequence_nr()), str(stale.dtype).removeprefix("torch.")
                write = clobbers.write_of(stale.noted, about)
                yield StaleCast(about, dtype, site_of(stale.place), write, site_of(used), clobbers.read_of(call))


def _in_region() -> bool:
    """Return True if this thread is inside of an autocast region, also one that is off inside of another."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth > 1


def _is_cached(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.requires_grad and not tensor._is_view() and tensor.is_leaf


class _Seen(Exception):
    """Ends the first operator that autocast calls."""


class _First(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises what the first operator gets, so that nothing is computed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Seen(func, args[0])


def _cast_of(leaf: torch.Tensor | None) -> Any:
    """Return the cast that autocast has kept of a leaf; None if it has none.

    An operator that autocast runs in lower precision gets the kept cast, or autocast begins to make one. Both are
    stopped before they run, so autocast keeps what it has, and nothing else.
    """
    if leaf is None or not _is_cached(leaf):
        return None
    with modes.aside(), _caching(leaf.device.type):
        try:
            with _First():  # type: ignore[no-untyped-call]
                torch.mm(leaf, leaf)
        except _Seen as seen:
            operator, cast = seen.args
            return cast if operator is torch.ops.aten.mm.default and cast.dtype is not torch.float32 else None
    return None


@contextmanager
def _caching(device: str) -> Iterator[None]:
    on, caches = torch.is_autocast_enabled(device), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, on)
        torch.set_autocast_cache_enabled(caches)


def _is_older(cast: Any, noted: Record) -> bool:
    return cast is not None and cast.grad_fn is not None and cast.grad_fn._sequence_nr() < noted.node


def _is_cast_of(node: Any, leaf: torch.Tensor | None) -> bool:
    behind = node.next_functions[0][0] if node.next_functions else None
    return leaf is not None and node.name().startswith("ToCopy") and getattr(behind, "variable", None) is leaf
