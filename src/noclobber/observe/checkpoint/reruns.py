"""What a checkpointed region reads when it is run anew is what it read in forward, where bytes are preserved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from noclobber.observe.checkpoint import taint
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Record, geometry, latest
from noclobber.observe.core.save_hooks import Handle, Needed, Suspect, alias_of, handle_of
from noclobber.observe.core.sites import Place, caller
from noclobber.observe.preserve import copy_before_write, rearm
from noclobber.observe.torch_api import native_saves, private

LOST = "a checkpointed region needs bytes that were overwritten, and noclobber failed to put them back"


class Past:
    """The tensors that one region can reach, to be put back for as long as it runs anew.

    `given` are its arguments, where nothing else keeps them as they were before its forward.
    """

    def __init__(
        self,
        context: Context,
        way: Way,
        place: Place | None,
        in_forward: Callable[[], bool],
        reached: Iterable[torch.Tensor],
        given: Iterable[Any] = (),
        *,
        reentrant: bool = False,
    ) -> None:
        self.context, self._way, self._place, self._in_forward = context, way, place, in_forward
        self._reentrant = reentrant
        self.reached: set[Needed] = set()
        self.has_put_back = False
        """Whether anything was in other memory, or held other bytes, while the region ran anew."""
        itself = ref(self)

        def gone(needed: Any) -> None:
            if (past := itself()) is not None:
                past.reached.discard(needed)

        for tensor in reached:
            if (needed := self._needed(tensor, way.entry(gone))) is not None:
                self.reached.add(needed)
        given = list(given)
        self._given = [self._needed(one) if isinstance(one, torch.Tensor) else None for one in given]
        self._required = [isinstance(one, torch.Tensor) and one.requires_grad for one in given]
        self._again: WeakKeyDictionary[Any, Handle] = WeakKeyDictionary()
        """What was saved when the region last ran anew, by PyTorch's holder."""
        self._stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _needed(self, tensor: torch.Tensor, gone: Callable[[Any], object] | None = None) -> Needed | None:
        key, alias = private.storage_key(tensor), alias_of(tensor)
        version = private.version_of(alias)
        if key is None or version is None or alias is tensor:
            return None
        needed = Needed(tensor, gone)
        needed.alias, needed.version, needed.digest, needed.shown = alias, version, None, None
        needed.node, needed.place, needed.moment = private.next_node() - 1, self._place, latest[0]
        needed.in_forward, needed.key, needed.where = self._in_forward, key, geometry(tensor)
        needed.unread, needed.standing, needed.connected = False, self._standing(tensor), None
        if gone is not None and needed.standing[1] is not None and not (version and tensor._is_view()):
            # Of a view that was written, looking at its node makes PyTorch put it elsewhere in the graph.
            needed.connected = native_saves.make(tensor)
        self._file(needed)
        return needed

    def _standing(self, tensor: torch.Tensor) -> tuple[bool, Any]:
        """Whether a tensor requires a gradient, and what tells where in the graph it is, where that matters."""
        return taint.node_of(tensor) if self._reentrant else (tensor.requires_grad, None)

    def _file(self, handle: Handle) -> None:
        live = self.context.live
        live.unsorted.append(ref(handle))
        if len(live.unsorted) > live.limit:
            live.sweep()

    def forward_ended(self) -> None:
        """The region has run: arguments that it did not overwrite itself are kept by what saves them."""
        self._given = [one if one is not None and _kept(one) is not None else None for one in self._given]

    # -- running anew --------------------------------------------------------------------------------------------------

    @contextmanager
    def restored(self, given: Iterable[Any] = ()) -> Iterator[None]:
        """Put back what was overwritten since, in its own memory; and what is there now, at the end.

        What is saved meanwhile is kept from the second. `given` are tensors of the checkpoint's own that share the
        memory of the arguments.
        """
        context, swapped, given = self.context, list[tuple[torch.Tensor, Needed]](), list(given)
        with ExitStack() as undo:
            for tensor, required, needed in zip(given, self._required, self._given, strict=False):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad != required:
                    tensor.requires_grad_(required)
                if needed is not None and (kept := _kept(needed)) is not None:
                    private.give(tensor, _copied(kept))
            for needed in list(self.reached):  # which loses those that die meanwhile
                self._put_back(needed, swapped, undo)
            there = {handle for _, needed in swapped for handle in context.live.at(needed.key)}
            waiting = there - context.put_off
            context.put_off |= waiting
            undo.callback(context.put_off.difference_update, waiting)
            undo.callback(self._keep_what_was_saved, swapped, there)
            self._stand_ins = [pair for needed in list(self.reached) if (pair := self._instead(needed)) is not None]
            undo.callback(self._stand_ins.clear)
            elsewhere = {private.storage_key(tensor) for tensor, _ in self._stand_ins}
            for tensor in given:
                if isinstance(tensor, torch.Tensor) and private.storage_key(tensor) in elsewhere:
                    private.give(tensor, _copied(tensor))  # else it can't be told from the one that is replaced
            yield

    def standing_in(self) -> AbstractContextManager[Any]:
        """Hand the region others in the place of tensors that were cut off the graph, joined to it or put elsewhere in
        it; to be entered once bytes are restored, around nothing but the region itself."""
        return _Instead(self._stand_ins) if self._stand_ins else nullcontext()

    def _instead(self, needed: Needed) -> tuple[torch.Tensor, torch.Tensor] | None:
        tensor = needed()
        if tensor is None or self._standing(tensor) == needed.standing:
            return None
        (required, place), kept = needed.standing, _kept(needed)
        if place is None:
            old = _copied(tensor) if kept is None else kept
            return tensor, old.detach().requires_grad_(required)
        if needed.connected is None:
            return None
        connected: torch.Tensor = needed.connected.unpack()
        shares = private.storage_key(connected) == private.storage_key(tensor)
        return tensor, connected.clone() if shares else connected

    def _put_back(self, needed: Needed, swapped: list[tuple[torch.Tensor, Needed]], undo: ExitStack) -> None:
        tensor, suspect = needed(), needed.version
        if tensor is None or not isinstance(suspect, Suspect):
            return
        self.has_put_back = True
        if private.storage_key(tensor) != needed.key or geometry(tensor) != needed.where:
            undo.callback(
                private.give, tensor, private.take(tensor)
            )  # it was given other memory: `tensor.data = u`, `set_`
            private.give(tensor, needed.alias)
        elif suspect.kept is not None:
            memory = private.take(tensor)
            undo.callback(_overwrite, memory, _copied(memory))
            _overwrite(memory, suspect.kept)
            swapped.append((tensor, needed))

    def _keep_what_was_saved(self, swapped: list[tuple[torch.Tensor, Needed]], there: set[Handle]) -> None:
        for tensor, needed in swapped:
            kept, noted = _kept(needed), _first_write(needed)
            made = [one for one in self.context.live.at(needed.key) if one not in there]
            if kept is None or noted is None:
                continue
            noted = noted._replace(geometry=geometry(tensor), key=needed.key)
            for handle in made:
                marked = handle.version
                if not isinstance(marked, Suspect):
                    marked = handle.version = Suspect(marked)
                marked.writes.append((noted, int(handle.alias._version)))
            copy_before_write.keep(self.context, made, noted, [(tensor, kept)])

    def enter_for(self, stack: ExitStack, frame: Any) -> bool:
        """A region that is not reentrant is run anew. `frame` is PyTorch's record of it, whose own hooks are on top of
        this thread's."""
        pack, unpack = private.top_hooks(True)
        stack.enter_context(rearm.preserving(self.context))
        stack.enter_context(self.restored())
        stack.enter_context(self._saving(frame, pack, unpack))
        stack.enter_context(self.standing_in())
        return True

    @contextmanager
    def _saving(self, frame: Any, pack: Any, unpack: Any) -> Iterator[None]:
        """Keep what such a region saves, as any save."""
        count = 0

        @functools.wraps(pack)
        def pack_again(tensor: torch.Tensor) -> Any:
            nonlocal count
            holder = frame.weak_holders[count]() if count < len(frame.weak_holders) else None
            count += 1
            if holder is None:
                return pack(tensor)
            handle = self._way.guarded(lambda: saved(tensor, holder))
            return pack(tensor if handle is None else handle.alias)  # the tensor may be given other memory

        def saved(tensor: torch.Tensor, holder: Any) -> Handle:
            self._again[holder] = handle = handle_of(tensor, private.next_node() - 1, caller(1), None)
            self._file(handle)
            return handle

        private.push_hooks(pack_again, unpack)
        try:
            yield
        finally:
            private.pop_hooks()
            vars(pack_again).pop(
                "_user_hooks", None
            )  # the graph holds what packs, and must not hold these (torch 2.15)

    def saved(self, holder: Any, tensor: torch.Tensor) -> torch.Tensor:
        """What was saved under PyTorch's holder when the region ran anew, where it has found `tensor` there."""
        handle = self._again.pop(holder, None)
        if handle is None:
            return tensor
        if _kept(handle) is not None or private.storage_key(handle.alias) != private.storage_key(tensor):
            return handle.alias
        return tensor

    def enter(self, stack: ExitStack, ctx: Any, args: Iterable[Any]) -> None:
        """A reentrant region is run anew, in a backward of its node `ctx`. When that backward has ended what the region
        needed may go, unless the graph is retained."""
        private.when_backward_ends(self._way.entry(lambda: self._release_if_freed(ctx)))
        stack.enter_context(rearm.preserving(self.context))
        stack.enter_context(self.restored(args))

    def _release_if_freed(self, ctx: Any) -> None:
        try:
            freed = not ctx._raw_saved_tensors
        except RuntimeError:
            freed = True
        if freed:
            self.reached.clear()
            self._given.clear()


class _Instead(TorchFunctionMode):
    """Hands every function of torch other tensors than it is given."""

    def __init__(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._pairs = {id(one): (one, other) for one, other in pairs}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self._other, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _other(self, value: Any) -> Any:
        return self._pairs.get(id(value), (value, value))[1]


def _kept(handle: Handle) -> torch.Tensor | None:
    return handle.version.kept if isinstance(handle.version, Suspect) else None


def _first_write(handle: Handle) -> Record | None:
    """The first write that can have changed the bytes of a handle."""
    writes = handle.version.writes if isinstance(handle.version, Suspect) else []
    return next((noted for noted, _ in writes if not noted.written.only_moves), None)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with private.aside():
        return tensor.detach().clone()


def _overwrite(memory: torch.Tensor, data: torch.Tensor) -> None:
    """Copy, element by element of the memory: where it is expanded each but once."""
    for dimension, stride in enumerate(memory.stride()):
        if stride == 0 and memory.shape[dimension] > 1:
            memory, data = memory.narrow(dimension, 0, 1), data.narrow(dimension, 0, 1)
    with private.aside():
        memory.copy_(data)
