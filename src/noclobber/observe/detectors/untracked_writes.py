"""Untracked writes: autograd does not see them (`no_grad`, `.data`, `.detach()`, numpy), yet it differentiates through
what they wrote."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from threading import get_ident
from types import FrameType
from typing import Literal, NamedTuple

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from noclobber.model.seen.events import Handed, Tensor, Via, Write
from noclobber.model.seen.silent import Untracked
from noclobber.model.source import Site
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Backward, Record, record
from noclobber.observe.core.seen.sites import Place, place_of, site_of
from noclobber.observe.core.seen.written import SHIFTS, Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, fingerprint, numbers, same
from noclobber.observe.witness.layout import Geometry, geometry, once, span, strided, tensor_on

Alias = Literal["data", "detached"]
How = Literal["no_grad", "inference_mode", Alias, "assigned", "foreign"]
_ADDING = (*SHIFTS, "aten::index_add_", "aten::scatter_add_")
"""Writes that need no tracking where they add a constant, as it does not change the gradient. The rule reads what they
add in the source."""
_FOREIGN = Written("", (), uncounted=True)
_FLAT = tuple(f"aten::{name}_" for name in ("round", "floor", "ceil", "trunc", "sign", "heaviside"))
"""Writes whose derivative is zero: who hides one from autograd wants the gradient to pass it by (straight through)."""
_LARGEST = 1 << 22
"""Bytes. The old values of tensors up to this size are kept, to see which elements a write changed."""
_ROUNDING = 32
"""How many units of rounding a sum may be off."""
_SMALL = 1 << 18
"""Bytes."""
_PATIENCE = 64
"""A write to a leaf is forgotten after this many backward calls that do not differentiate through it; one to another
tensor with its node."""
_MOST = 64
_MOST_EMPTIED = 4096
_TAKEN = 16
"""How many tensors of a thread are known by the aliases outside of the graph that it took of them."""
_SOURCES = 512
"""How many nodes of a graph are searched for the leaves that a leaf's first values are computed from."""


class _Target(NamedTuple):
    """A tensor of the graph, without a reference to it: a weak one would make `swap_tensors` fail."""

    key: int
    storage: storages.StorageRef
    """Tells whether the memory of `key` is still there."""
    identity: int
    """Identifies a leaf while its memory is there; 0 for other tensors."""
    output: graph.Output | None
    """What made the tensor; None for a leaf."""
    shown: Geometry
    """How it shows its memory."""

    def is_gone(self) -> bool:
        """Return True if no backward can reach the tensor any more."""
        return self.storage.expired() if self.output is None else self.output.is_gone()

    def is_leaf(self, tensor: object) -> bool:
        """Return True if `tensor` is this leaf. PyTorch reuses both addresses of a dead leaf, but a new tensor at them
        has another storage."""
        if not self.identity or not isinstance(tensor, torch.Tensor) or tensor_state.identity(tensor) != self.identity:
            return False
        return self.is_on(storages.storage_key(tensor))

    def is_on(self, key: int | None) -> bool:
        return self.key == key and storages.is_at(self.storage, key)

    def moved_to(self, value: torch.Tensor) -> _Target | None:
        key = storages.storage_key(value)
        if key is None:
            return None
        return self._replace(key=key, storage=storages.storage_ref(value), shown=geometry(value))


class _Out(NamedTuple):
    """The values of a tensor when its memory was handed to code outside of torch."""

    record: Record
    digest: Digest
    values: torch.Tensor | None
    """None where they take more than _SMALL bytes, as many tensors may be handed out."""
    shown: Geometry
    handed: Handed
    described: Callable[[], Tensor]


@dataclass(slots=True, eq=False)
class _Taken:
    """A tensor of which a thread took an alias outside of the graph."""

    thread: int
    target: _Target
    how: Alias
    used: bool
    """Whether a graph already depended on the tensor."""
    waited: int = 0
    """Backward calls since."""
    out: _Out | None = None
    """Until a write of torch's."""


@dataclass(slots=True, eq=False)
class _Unseen:
    """A write that autograd did not see, kept until a backward differentiates through what it wrote."""

    record: Record
    how: How
    target: _Target
    described: Callable[[], Tensor]
    """Describes what was written, for a report."""
    source: Tensor | None = None
    initial: tuple[_Target, ...] | None = None
    """For a leaf that gets its first values: the leaves that they were computed from; else None."""
    adds: bool = False
    foreign: Write | None = None
    """The write of code outside of torch, without the tensor."""
    changed: torch.Tensor | None = None
    """A mask of the elements that changed; None where that is not known."""
    even: tuple[int, ...] = ()
    """The dimensions along which all elements changed by the same amount."""
    is_of_itself: bool = False
    """Whether what was written is in the graph, and computed from the tensor itself."""
    waited: int = 0
    """Backward calls since the write."""
    alias: torch.Tensor | None = None
    """Of what is being written, until the write is over: one that makes the tensor larger does not resize it. It is
    held here and by no closure, which would count as one of the program's (describe/holders.py)."""
    into: torch.Tensor | None = None
    """The tensor itself, held in the same way."""

    def has_changed(self, tensor: torch.Tensor, old: torch.Tensor | None) -> bool:
        """Return True if any element differs from `old`, or if that cannot be known. Records which elements differ.

        Two NaNs are equal here.
        """
        with modes.aside():
            values = None if old is None else numbers(tensor)
            if values is None or old is None or values.shape != old.shape:
                return True
            changed = (values != old) & ((values == values) | (old == old))
            self.changed = _spread(changed, geometry(tensor), self.target.shown)
            if (self.adds or self.how == "assigned") and geometry(tensor) == self.target.shown:
                self.even = _even(values, old)
            return bool(changed.any())

    def matters_to(self, gradient: torch.Tensor) -> bool:
        """Return True if an arriving gradient is not zero where elements changed.

        One without numbers, as in a fake run, counts where a leaf was cut off: that is so whatever the numbers are.
        """
        with modes.aside():
            values, changed = numbers(gradient), self.changed
            if values is None:
                return bool(self.target.identity)
            if changed is not None and gradient.is_sparse and changed.shape == gradient.shape:
                changed = changed[tuple(gradient._indices())]
            known = changed is not None and changed.shape == values.shape
            return bool(((values[changed] if known else values) != 0).any())

    def is_balanced(self, gradient: torch.Tensor) -> bool:
        """Return True if the gradient is zero with respect to the amounts that were added, as that of softmax is where
        one number was taken from all scores of a row."""
        with modes.aside():
            values = numbers(gradient)
            if values is None or not self.even or values.dim() <= max(self.even):
                return False
            rest = values.sum(self.even).abs()
            return bool((rest <= _ROUNDING * torch.finfo(values.dtype).eps * values.abs().sum(self.even)).all())

    def is_first(self, passed: set[int]) -> bool:
        """Return True if a leaf got its first values, and the leaves behind them get their gradients all the same.

        `passed` identifies the leaves that a backward reaches. Nothing asks for the gradient of a leaf that is gone.
        """
        behind = self.initial
        return behind is not None and all(one.identity in passed or one.storage.expired() for one in behind)


def arm(context: Context, way: Way) -> None:
    context.state(UntrackedWrites).arm(way)


class UntrackedWrites:
    """The untracked writes of this process that no backward has differentiated through yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._way = context.core  # until it is armed
        self._waiting: deque[_Unseen] = deque(maxlen=_MOST)  # oldest first
        self.taken: deque[_Taken] = deque()
        """The tensors of which each thread took an alias since its last backward, _TAKEN of a thread at most. Writes to
        their storages are attended."""
        self._begun: deque[_Target] = deque(maxlen=_MOST)
        """The leaves that got their first values from a graph."""
        self._passed: deque[_Target] = deque(maxlen=_MOST)
        """The tensors that the gradient is meant to pass unchanged."""
        self._emptied: OrderedDict[int, storages.StorageRef] = OrderedDict()
        """The storages whose memory the program freed, to fill it again itself, by identity."""

    def arm(self, way: Way) -> None:
        self._way = way
        for one in list(self.taken):  # from before the mode changed
            self._context.attend(self._look, (one.target.key,))
        self._context.calls.watch(way, self._forget_taken, among=self.taken)
        self._context.calls.watch(way, self._attach, among=self._waiting)

    # -- writes ------------------------------------------------------------------------------------------------------

    def taken_out(self, tensor: torch.Tensor, key: int, how: Alias) -> None:
        if self._is_given(key) or (target := _target(whole := tensor_state.whole(tensor))) is None:
            return
        self._context.attend(self._look, (target.key,))
        self.taken.append(_Taken(get_ident(), target, how, _is_used(whole, target)))
        everyone = list(self.taken)
        own = [one for one in everyone if one.thread == get_ident()]
        for one in own[:-_TAKEN] or everyone[:-_MOST]:
            self._drop_taken(one)

    def _is_given(self, key: int | None) -> bool:
        """Return True for what a Function under way is given: undeclared_writes.py checks what it does with that."""
        given = self._context.thread.given
        return bool(given) and any(key in forward.keys for forward in given)

    def _forget_taken(self, _: Backward) -> None:
        """Forget the aliases of leaves at a backward call of their thread, and those of what no backward reaches any
        more."""
        for one in self.taken.copy():
            one.waited += 1
            is_over = one.thread == get_ident() or one.waited >= _PATIENCE
            if (one.target.identity and is_over) or one.target.is_gone():
                self._drop_taken(one)

    def _drop_taken(self, one: _Taken) -> None:
        with contextlib.suppress(ValueError):  # another thread may have dropped it already
            self.taken.remove(one)
            self._context.ignore(self._look, (one.target.key,))

    def _look(self, *_: object) -> None:
        """Attend a storage: `before` looks at the writes."""

    def emptied(self, storage: torch.UntypedStorage) -> None:
        self._emptied[storage._cdata] = storages.ref_of(storage)
        if len(self._emptied) > _MOST_EMPTIED:
            self._emptied.popitem(last=False)

    def before(
        self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType
    ) -> tuple[Callable[[], object], bool] | None:
        found = self._way.guarded(self._before, written, tensor, key, frame)
        return None if found is None else (self._way.entry(found[0]), found[1])

    def _before(
        self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType
    ) -> tuple[Callable[[], None], bool] | None:
        if self._is_given(key):
            return None
        self._forget_out(key)
        found = None if written.uncounted else self._reached(tensor, key)
        if found is None:
            return None
        target, how, used = found
        if target.identity:
            aliased = how in ("data", "detached")
            return (self._into_leaf(written, tensor, target, how, key, frame, used=used), False) if aliased else None
        if written.op in _FLAT:
            self._passed.append(target)
            self._drop_writes(target)
        if target in self._passed:
            return None
        if target.storage.cdata in self._emptied:
            self._context.bus.not_seen("writes that autograd does not see, to memory that the program had freed")
            return None
        with modes.aside():
            values = numbers(tensor)
            if values is None:
                self._context.bus.not_seen("writes that autograd does not see, to tensors that show no numbers")
                return None
            old = values.clone() if values.nbytes <= _LARGEST else None
            digest = fingerprint(tensor) if old is None and self._context.contents is not None else None
            alias = tensor_state.detach(tensor)
        noted = record(written, tensor, key, place_of(frame), self._context.thread)
        unseen = _Unseen(noted, how, target, clobbers.later_of(tensor), adds=written.op in _ADDING, alias=alias)
        unseen.into = tensor if how in ("data", "detached") else None

        def after() -> None:
            (shown, into), unseen.alias, unseen.into = (unseen.alias, unseen.into), None, None
            is_same = type(digest) is int and shown is not None and fingerprint(shown) == digest
            if target.output is not None and into is not None and into.requires_grad and torch.is_grad_enabled():
                unseen.is_of_itself = _comes_from(graph.maker_of(into), target.output)  # the alias has a node now
            if shown is not None and not is_same and unseen.has_changed(shown, old):
                if unseen.adds:  # which is mostly right, so that it takes no place of another
                    self._drop_writes(target, noted.place)
                if not unseen.adds or len(self._waiting) < _MOST:
                    self._waiting.append(unseen)

        return after, not unseen.adds

    def _reached(self, tensor: torch.Tensor, key: int) -> tuple[_Target, How, bool] | None:
        """Return the tensor of the graph that a write goes to, how the write is hidden from autograd, and whether a
        graph depended on the tensor before. None where no such tensor is known."""
        if not torch.is_grad_enabled() and (target := _target(tensor_state.whole(tensor))) is not None:
            return target, "inference_mode" if torch.is_inference_mode_enabled() else "no_grad", True
        if tensor.requires_grad:
            return None
        taken = reversed(self.taken.copy())  # other threads add to it
        return next(((one.target, one.how, one.used) for one in taken if one.target.is_on(key)), None)

    def _into_leaf(
        self, written: Written, tensor: torch.Tensor, leaf: _Target, how: How, key: int, frame: FrameType, *, used: bool
    ) -> Callable[[], None]:
        """Return what to call after a write through an alias of a leaf.

        If the written values come from a graph, the alias is in that graph after the write.
        """
        noted = record(written, tensor, key, place_of(frame), self._context.thread)

        def after() -> None:
            if tensor.requires_grad:
                self._cut_off(noted, how, leaf, tensor, used=used)

        return after

    def assigned(self, noted: Record, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Record `tensor.data = value`. It cuts `value` off its own graph, and `tensor` may be a computed tensor."""
        if (target := _target(tensor)) is None:
            return
        if target.identity:
            if value.requires_grad:
                self._cut_off(noted, "assigned", target, value, used=_is_used(tensor, target))
            return
        if (target := target.moved_to(value)) is None:
            return
        source = clobbers.unnamed(value) if value.requires_grad else None
        unseen = _Unseen(noted, "assigned", target, clobbers.later_of(value), source)
        with modes.aside():
            values = numbers(tensor)
        small = values is not None and values.nbytes <= _LARGEST
        if unseen.has_changed(value, values if small else None):
            self._waiting.append(unseen)

    def handed_out(self, tensor: torch.Tensor, key: int, by: str, frame: FrameType) -> None:
        """Note the values of a computed tensor."""
        taken = next((one for one in reversed(self.taken.copy()) if one.target.is_on(key)), None)
        with modes.aside():
            values = None if taken is None or taken.target.identity else numbers(tensor)
            digest = None if values is None else fingerprint(tensor)
            if taken is None or values is None or digest is None:
                return
            noted = record(_FOREIGN, tensor, key, place_of(frame), self._context.thread)
            handed = Handed(by, site_of(noted.place))
            old = values.clone() if values.nbytes <= _SMALL else None
            about = clobbers.later_of(tensor)
            taken.out = _Out(noted, digest, old, geometry(tensor), handed, about)

    def _forget_out(self, key: int) -> None:
        for one in self.taken.copy():
            if one.target.is_on(key):
                one.out = None

    def saved(self, alias: torch.Tensor, key: int, site: Site | None) -> None:
        """Look at a tensor whose memory was handed out, when an operator that runs at `site` has saved it."""
        for taken in reversed(self.taken.copy()):
            out = taken.out if taken.target.is_on(key) else None
            if out is None or strided(out.shown) is None or out.shown[3] is not alias.dtype:
                continue
            write = Write("", site, via="foreign", since=out.handed.site, handed=out.handed)
            unseen = _Unseen(out.record, "foreign", taken.target, out.described, foreign=write)
            with modes.aside():
                now = tensor_on(taken.target.storage, out.shown)
                is_same = now is None or same(fingerprint(now), out.digest)
                is_changed = now is not None and not is_same and unseen.has_changed(now, out.values)
            if is_changed:
                self._forget_out(key)
                self._waiting.append(unseen)
                return

    def _cut_off(self, noted: Record, how: How, leaf: _Target, value: torch.Tensor, *, used: bool) -> None:
        """Record a write that gave a leaf values from a graph, unless that graph depends on this leaf alone.

        `used`: a graph depended on the leaf before, so these are not its first values.
        """
        there, made = leaf.moved_to(value), graph.made_or_base_of(value)
        if there is not None and made is not None and not _only_of(made, leaf):
            begun = used or any(one.identity == leaf.identity and one.is_on(leaf.key) for one in self._begun.copy())
            initial = None if begun else _leaves_behind(made, leaf)
            about = clobbers.later_of(value)
            self._waiting.append(_Unseen(noted, how, there, about, source=clobbers.unnamed(value), initial=initial))

    def _drop_writes(self, target: _Target, place: Place | None = None) -> None:
        """Forget the writes to a tensor, or those that one place has made."""
        for waiting in list(self._waiting):
            if waiting.target == target and place in (None, waiting.record.place):
                self._drop_write(waiting)

    def _drop_write(self, one: _Unseen) -> None:
        with contextlib.suppress(ValueError):  # another thread may have dropped it already
            self._waiting.remove(one)

    # -- backward ----------------------------------------------------------------------------------------------------

    def _attach(self, backward: Backward) -> End:
        """Watch the gradients of a backward that begins where they reach tensors with untracked writes.

        Returns what to call when the backward has ended.
        """
        waiting = list(self._waiting)
        inner: dict[int, list[tuple[graph.Output, _Unseen]]] = {}
        for unseen in waiting:
            unseen.waited += 1
            if unseen.target.is_gone() or (unseen.target.identity and unseen.waited > _PATIENCE):
                self._drop_write(unseen)
            elif (made := unseen.target.output) is not None:
                inner.setdefault(made.number, []).append((made, unseen))
        leaves = [unseen for unseen in reversed(waiting) if unseen.target.identity]
        hooks: list[RemovableHandle] = []
        hooked: set[tuple[object, int]] = set()
        arrived: list[Untracked] = []
        passed: set[int] = set()  # the leaves of this graph
        edges = list(graph.edges(backward.outputs))
        read_at = graph.times_of_reads(edges)
        for node, following, index in edges:
            leaf, number = getattr(following, "variable", None), following._sequence_nr()
            if isinstance(leaf, torch.Tensor):  # a ctx may have any `variable`
                passed.add(tensor_state.identity(leaf))
                written = next(([one] for one in leaves if one.target.is_leaf(leaf)), [])
            else:
                near = inner.get(number, ())
                written = [unseen for made, unseen in near if made.is_of(following, index)]
            read: list[_Unseen] = []
            for one in written:
                maker = number if one.target.output is not None else -1
                if node is not None and not graph.is_after(read_at[node], maker, one.record.node):
                    one.initial = None
                elif node is not None or one.how != "detached":  # where backward begins they may be for a log
                    read.append(one)
            reached = [one for one in read if not one.adds][-1:] or read
            if reached and (following, index) not in hooked:
                hooked.add((following, index))
                name = node.name() if node is not None else ""
                look = self._reads(reached, index, leaf, name, backward, arrived, passed)
                hooks.append(hook_stack.hook(following.register_prehook, self._way.entry(look)))

        def ended(result: object, error: BaseException | None) -> None:
            for hook in hooks:
                hook.remove()
            for event in arrived:
                if event.write.site not in backward.explained:
                    self._context.bus.notice(event)

        return ended

    def _reads(
        self,
        reached: list[_Unseen],
        index: int,
        leaf: torch.Tensor | None,
        node: str,
        backward: Backward,
        arrived: list[Untracked],
        passed: set[int],
    ) -> Callable[[tuple[torch.Tensor | None, ...]], None]:
        """Return the hook of one edge. It adds to `arrived` when a gradient arrives that the writes make wrong."""

        def gradient_arrives(gradients: tuple[torch.Tensor | None, ...]) -> None:
            gradient = gradients[index]
            if gradient is None:
                return
            for unseen in [one for one in reached if one in self._waiting and one.matters_to(gradient)]:
                self._drop_writes(unseen.target)
                if unseen.is_first(passed):
                    self._begun.append(unseen.target)
                    return
                tensor = unseen.described() if leaf is None else clobbers.tensor_of(leaf)
                read, even = clobbers.read_of(backward, node), unseen.is_balanced(gradient)
                of_itself = unseen.is_of_itself
                arrived.append(
                    Untracked(_write(unseen, tensor), unseen.how, tensor, read, unseen.source, even, of_itself)
                )

        return gradient_arrives


def _spread(changed: torch.Tensor, part: Geometry, whole: Geometry) -> torch.Tensor | None:
    """Return the mask of a whole tensor from that of a part of it; None where a part has another dtype or layout."""
    if part == whole:
        return changed
    shown, known = strided(part), strided(whole)
    if shown is None or known is None or shown[3] != known[3]:
        return None
    begin = min(shown[0], known[0])
    end = max(stop // shown[3].itemsize for _, stop in (span(part), span(whole)))
    mask = torch.zeros(end - begin, dtype=torch.bool, device=changed.device)
    changed = once(changed, shown[2])
    mask.as_strided(changed.shape, shown[2], shown[0] - begin).copy_(changed)
    return mask.as_strided(known[1], known[2], known[0] - begin)


def _even(values: torch.Tensor, old: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions along which all numbers of a tensor moved by the same amount, but for rounding."""
    if not values.is_floating_point() or values.numel() == 0:
        return ()
    moved = values - old
    slack = 2 * torch.finfo(values.dtype).eps * torch.maximum(values.abs(), old.abs())
    pairs = ((dim, (moved - slack).amax(dim), (moved + slack).amin(dim)) for dim in range(moved.dim()))
    return tuple(dim for dim, lowest, highest in pairs if bool((lowest <= highest).all()))


def _write(unseen: _Unseen, tensor: Tensor) -> Write:
    if unseen.foreign is not None:
        return replace(unseen.foreign, tensor=tensor)
    via: Via = "set_data" if unseen.how == "assigned" else "data" if unseen.how == "data" else "operator"
    return replace(clobbers.write_of(unseen.record, tensor), via=via, version_after=None)


def _target(tensor: torch.Tensor) -> _Target | None:
    """Return the record of a tensor that is no view; None without a gradient, and without a storage."""
    key = storages.storage_key(tensor)
    if key is None or not tensor.requires_grad or tensor._is_view():
        return None
    producer, storage, shown = tensor.grad_fn, storages.storage_ref(tensor), geometry(tensor)
    if producer is None:
        return _Target(key, storage, tensor_state.identity(tensor), None, shown)
    return _Target(key, storage, 0, graph.output_ref(producer, tensor.output_nr), shown)


def _comes_from(root: Node | None, made: graph.Output) -> bool:
    """Return True if the nearest nodes of a graph, _SOURCES at most, get what an output of a node is."""
    waiting = deque([root] if root is not None else [])
    seen = set(waiting)
    while waiting and len(seen) < _SOURCES:
        for following, output_nr in waiting.popleft().next_functions:
            if following is not None and made.is_of(following, output_nr):
                return True
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _only_of(root: Node, leaf: _Target) -> bool:
    """Return True if a graph is small and depends on this leaf alone.

    Such a graph puts a parameter back into bounds, and the program wants no gradient through it.
    """
    for count, node in enumerate(graph.walk([root])):
        variable = getattr(node, "variable", None)
        if count > 4 or (variable is not None and not leaf.is_leaf(variable)):
            return False
    return True


def _is_used(tensor: torch.Tensor, target: _Target) -> bool:
    """Return True if a graph depends on a leaf, or if the leaf has a gradient.

    The AccumulateGrad node of a leaf holds it, and lives as long as a graph that leads to it (torch 2.13;
    tests/observe/detectors/test_untracked.py). Also True for a tensor that is no leaf.
    """
    return not target.identity or tensor_state.use_count(tensor) > 1 or tensor.grad is not None


def _leaves_behind(root: Node, leaf: _Target) -> tuple[_Target, ...] | None:
    """Return the leaves that a graph depends on, of a large graph those found first; None if `leaf` is among them."""
    found: list[_Target] = []
    for node in islice(graph.walk([root]), _SOURCES):
        variable = getattr(node, "variable", None)
        if variable is not None and leaf.is_leaf(variable):
            return None
        if variable is not None and (one := _target(variable)) is not None:
            found.append(one)
    return tuple(found)
