"""Makes a checkpointed region read the same bytes in its second run as in forward, where bytes are preserved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import Handle, Needed, alias_of, handle_of, made
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.preserve import copy_before_write, rearm
from noclobber.observe.takers.checkpoint import taint
from noclobber.observe.torch_api.autograd import engine_state, hook_stack, native_saves
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import geometry, once

LOST = "a checkpointed region needs bytes that were overwritten, and noclobber failed to put them back"


class RegionFrame(Protocol):
    """PyTorch's record of a region that is not reentrant (`_CheckpointFrame`)."""

    recompute_fn: Callable[..., object]
    early_stop: bool
    forward_completed: bool
    recomputed: Mapping[int, Mapping[object, torch.Tensor]]
    weak_holders: Sequence[ref[object]]


class SavesTensors(Protocol):
    """The node of a Function, of which PyTorch's own saves can be read."""

    _raw_saved_tensors: tuple[object, ...]


class Past:
    """The tensors that one region can reach, with their bytes from forward, which are put back while it runs again.

    `given` are the region's arguments, where nothing else keeps their bytes from before its forward.
    """

    def __init__(
        self,
        context: Context,
        way: Way,
        place: Place | None,
        in_forward: Callable[[], bool],
        reached: Iterable[torch.Tensor],
        given: Iterable[object] = (),
        *,
        reentrant: bool = False,
    ) -> None:
        self.context, self._way, self._place, self._in_forward = context, way, place, in_forward
        self._reentrant = reentrant
        self.reached: set[Needed] = set()
        self.has_put_back = False
        """True once a second run of the region had to put back memory or bytes."""
        itself = ref(self)

        def gone(needed: Needed) -> None:
            if (past := itself()) is not None:
                past.reached.discard(needed)

        for tensor in reached:
            if (needed := self._needed(tensor, way.entry(gone))) is not None:
                self.reached.add(needed)
        given = list(given)
        self._given = [self._needed(argument) if isinstance(argument, torch.Tensor) else None for argument in given]
        self._required = [isinstance(argument, torch.Tensor) and argument.requires_grad for argument in given]
        self._again: WeakKeyDictionary[object, Handle] = WeakKeyDictionary()
        """The saves of the region's last second run, by PyTorch's holder."""
        self._stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tensors whose place in the graph has changed, each with the tensor that the region gets instead."""

    def _needed(self, tensor: torch.Tensor, gone: Callable[[Needed], object] | None = None) -> Needed | None:
        """Return the record of a tensor as it is now; None if it has no storage, no version or no detached alias.

        `gone` is called when the tensor dies.
        """
        key, alias = storages.storage_key(tensor), alias_of(tensor)
        if key is None or tensor_state.version_of(alias) is None or alias is tensor:
            return None
        needed = made(Needed, tensor, alias, engine_state.next_node() - 1, self._place, gone=gone)
        needed.in_forward, needed.key, needed.where = self._in_forward, key, geometry(tensor)
        needed.unread, needed.standing, needed.connected = False, self._standing(tensor), None
        if gone is not None and needed.standing[1] is not None and not (needed.version and tensor._is_view()):
            # Not of a view that was written: reading its node makes PyTorch give it another place in the graph.
            needed.connected = native_saves.connected(tensor)
        self.context.live.add(needed)
        return needed

    def _standing(self, tensor: torch.Tensor) -> tuple[bool, int | None]:
        """Return whether a tensor requires a gradient, and a number for its place in the graph (`taint.node_of`).

        The number is None for a leaf, and in a region that is not reentrant, where the place does not matter.
        """
        return taint.node_of(tensor) if self._reentrant else (tensor.requires_grad, None)

    def forward_ended(self) -> None:
        """Forward has ended: drop the arguments that the region did not overwrite. Their own saves keep them."""
        self._given = [needed if needed is not None and needed.kept is not None else None for needed in self._given]

    # -- the second run ------------------------------------------------------------------------------------------------

    @contextmanager
    def restored(self, given: Iterable[Any] = ()) -> Iterator[None]:
        """Put the bytes from forward back into their own memory, and at the end the bytes that are there now.

        Saves made in between are kept, so that the second step does not clobber them. `given` are tensors of the
        checkpoint's own that share the memory of the arguments.
        """
        context, given = self.context, list(given)
        swapped: list[tuple[torch.Tensor, Needed]] = []
        with ExitStack() as undo:
            for tensor, required, needed in zip(given, self._required, self._given, strict=False):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad != required:
                    tensor.requires_grad_(required)
                if needed is not None and (kept := needed.kept) is not None:
                    tensor_state.give(tensor, _copied(kept))
            for needed in list(self.reached):  # a copy: tensors that die in the meantime leave the set
                self._put_back(needed, swapped, undo)
            there = {handle for _, needed in swapped for handle in context.live.at(needed.key)}
            waiting = there - context.put_off
            context.put_off |= waiting
            undo.callback(context.put_off.difference_update, waiting)
            undo.callback(self._keep_what_was_saved, swapped, there)
            self._stand_ins = [pair for needed in list(self.reached) if (pair := self._instead(needed)) is not None]
            undo.callback(self._stand_ins.clear)
            elsewhere = {storages.storage_key(tensor) for tensor, _ in self._stand_ins}
            for tensor in given:
                if isinstance(tensor, torch.Tensor) and storages.storage_key(tensor) in elsewhere:
                    tensor_state.give(tensor, _copied(tensor))  # so that it has other memory than the replaced tensor
            yield

    def standing_in(self) -> AbstractContextManager[object]:
        """Return a context in which the region gets other tensors in place of those whose place in the graph changed:
        they were cut off the graph, joined to it or moved in it. Enter it after `restored`, around the region only."""
        return _Instead(self._stand_ins) if self._stand_ins else nullcontext()

    def _instead(self, needed: Needed) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return a tensor and its stand-in; None where the tensor is gone, still has its place in the graph, or cannot
        be put back there."""
        tensor = needed()
        if tensor is None or self._standing(tensor) == needed.standing:
            return None
        (required, place), kept = needed.standing, needed.kept
        if place is None:
            old = _copied(tensor) if kept is None else kept
            return tensor, tensor_state.detach(old).requires_grad_(required)
        if needed.connected is None:
            return None
        connected: torch.Tensor = needed.connected.unpack()
        shares = storages.storage_key(connected) == storages.storage_key(tensor)
        return tensor, connected.clone() if shares else connected

    def _put_back(self, needed: Needed, swapped: list[tuple[torch.Tensor, Needed]], undo: ExitStack) -> None:
        tensor = needed()
        if tensor is None or needed.suspect is None:
            return
        self.has_put_back = True
        if storages.storage_key(tensor) != needed.key or geometry(tensor) != needed.where:
            # The program gave the tensor other memory: `tensor.data = u`, `set_`.
            undo.callback(tensor_state.give, tensor, tensor_state.take(tensor))
            tensor_state.give(tensor, needed.alias)
        elif needed.kept is not None:
            memory = tensor_state.take(tensor)
            undo.callback(_overwrite, memory, _copied(memory))
            _overwrite(memory, needed.kept)
            swapped.append((tensor, needed))

    def _keep_what_was_saved(self, swapped: list[tuple[torch.Tensor, Needed]], there: set[Handle]) -> None:
        """Keep copies for the saves of the second run, before the bytes in memory change back.

        `swapped` are the tensors whose bytes were put back; `there` are the saves from before the second run.
        """
        for tensor, needed in swapped:
            kept, noted = needed.kept, next((one for one, _ in needed.writes if not one.written.only_moves), None)
            made = [handle for handle in self.context.live.at(needed.key) if handle not in there]
            if kept is None or noted is None:
                continue
            noted = noted._replace(geometry=geometry(tensor), key=needed.key)
            for handle in made:
                handle.suspected().writes.append((noted, int(handle.alias._version)))
            copy_before_write.keep(self.context, made, noted, [(tensor, kept)])

    def enter_for(self, stack: ExitStack, frame: RegionFrame) -> bool:
        """Prepare the second run of a region that is not reentrant. `frame` is PyTorch's record of the region, and the
        record's hooks are on top of this thread's stack. Returns True."""
        pack, unpack = hook_stack.top_hooks(True)
        stack.enter_context(rearm.preserving(self.context))
        stack.enter_context(self.restored())
        stack.enter_context(self._saving(frame, pack, unpack))
        stack.enter_context(self.standing_in())
        return True

    @contextmanager
    def _saving(
        self, frame: RegionFrame, pack: Callable[[torch.Tensor], object], unpack: Callable[[Any], torch.Tensor]
    ) -> Iterator[None]:
        """Make a handle for each tensor that the second run saves, as for any other save."""
        count = 0

        @functools.wraps(pack)
        def pack_again(tensor: torch.Tensor) -> object:
            nonlocal count
            holder = frame.weak_holders[count]() if count < len(frame.weak_holders) else None
            count += 1
            if holder is None:
                return pack(tensor)
            handle = self._way.guarded(saved, tensor, holder)
            return pack(tensor if handle is None else handle.alias)  # the tensor itself may get other memory later

        def saved(tensor: torch.Tensor, holder: object) -> Handle:
            self._again[holder] = handle = handle_of(tensor, engine_state.next_node() - 1, caller(), None)
            self.context.live.add(handle)
            return handle

        hook_stack.push_hooks(pack_again, unpack)
        try:
            yield
        finally:
            hook_stack.pop_hooks()
            # The graph holds the pack hook, and must not hold the program's hooks through it (torch 2.15).
            vars(pack_again).pop("_user_hooks", None)

    def saved(self, holder: object, tensor: torch.Tensor) -> torch.Tensor:
        """Return what the second run saved under PyTorch's holder. `tensor` is what PyTorch itself found there."""
        handle = self._again.pop(holder, None)
        if handle is None:
            return tensor
        if handle.kept is not None or storages.storage_key(handle.alias) != storages.storage_key(tensor):
            return handle.alias
        return tensor

    def enter(self, stack: ExitStack, ctx: SavesTensors, args: Iterable[object]) -> None:
        """Prepare the second run of a reentrant region, in a backward of its node `ctx`.

        When that backward has ended, the bytes from forward are dropped, unless the graph is retained.
        """
        engine_state.when_backward_ends(self._way.entry(lambda: self._release_if_freed(ctx)))
        stack.enter_context(rearm.preserving(self.context))
        stack.enter_context(self.restored(args))

    def _release_if_freed(self, ctx: SavesTensors) -> None:
        try:
            freed = not ctx._raw_saved_tensors
        except RuntimeError:
            freed = True
        if freed:
            self.reached.clear()
            self._given.clear()


class _Instead(TorchFunctionMode):
    """Replaces tensors in the arguments of every torch function: of each pair, the first by the second."""

    def __init__(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._pairs = {id(tensor): (tensor, stand_in) for tensor, stand_in in pairs}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        positional, named = tree_map(self._other, (args, kwargs or {}))
        return func(*positional, **named)

    def _other(self, value: object) -> object:
        return self._pairs.get(id(value), (value, value))[1]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with modes.aside():
        return tensor_state.detach(tensor).clone()


def _overwrite(memory: torch.Tensor, data: torch.Tensor) -> None:
    """Copy `data` into `memory`. Where the memory is expanded, copy each of its elements only once."""
    strides = memory.stride()
    with modes.aside():
        once(memory, strides).copy_(once(data, strides))
