"""Writes that autograd is kept from seeing (`no_grad`, `.data`) to tensors that it then differentiates through."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from noclobber.model.events import Read, Tensor, Write
from noclobber.model.silent import Untracked
from noclobber.observe.core.backward_calls import End
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import numbers
from noclobber.observe.core.records import Backward, Record, record
from noclobber.observe.core.sites import place_of, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import graph, private

How = Literal["no_grad", "inference_mode", "data", "assigned"]
_ADDING = ("aten::add_", "aten::sub_", "aten::index_add_", "aten::scatter_add_")
"""A constant that is added has no part in the gradient, so these may go unseen."""
_LARGEST = 1 << 22
"""Bytes up to which the values from before a write are kept, to tell which elements it changed."""
_PATIENCE = 3
"""Backward calls after which a write that none of them differentiates through is forgotten."""
_MOST = 64


Output = tuple[int, str, int]
"""An output of a node: the node's sequence number and name, and which one. Each thread has its own numbers."""


class _Target(NamedTuple):
    """A tensor of the graph, without holding it: a weak reference to it would forbid `swap_tensors`."""

    key: int
    storage: Any
    """Tells whether the memory that `key` means is still there."""
    identity: int
    """What tells a leaf, as long as its memory is there; 0 for others."""
    output: Output
    """Of which node it is which output."""

    def is_leaf(self, tensor: Any) -> bool:
        """Whether this is that leaf. Both of its addresses are used again once it is gone, but not with its storage."""
        if not self.identity or not isinstance(tensor, torch.Tensor) or private.identity(tensor) != self.identity:
            return False
        return self.is_on(private.storage_key(tensor))

    def is_on(self, key: int | None) -> bool:
        """Whether this is the memory of the tensor."""
        return self.key == key and not self.storage.expired()

    def moved_to(self, value: torch.Tensor) -> _Target | None:
        """The same tensor once it has the memory of another; None where that has none."""
        key = private.storage_key(value)
        return None if key is None else self._replace(key=key, storage=private.storage_ref(value))


@dataclass(slots=True, eq=False)
class _Unseen:
    """A write that autograd does not know of, until a backward differentiates through what it wrote."""

    record: Record
    how: How
    target: _Target
    tensor: Tensor
    source: Tensor | None = None
    changed: torch.Tensor | None = None
    """Which elements changed; None where that is not known."""
    waited: int = 0

    def has_changed(self, tensor: torch.Tensor, old: torch.Tensor | None) -> bool:
        """Note which elements differ; two that are no numbers do not. Return True if any do, or that can't be told."""
        with private.aside():
            values = None if old is None else numbers(tensor)
            if values is None or old is None or values.shape != old.shape:
                return True
            self.changed = (values != old) & ((values == values) | (old == old))
            return bool(self.changed.any())

    def matters_to(self, gradient: torch.Tensor) -> bool:
        """Return True if a gradient that arrives is not zero where elements changed."""
        with private.aside():
            values, changed = numbers(gradient), self.changed
            if values is None:
                return False
            if changed is not None and gradient.is_sparse and changed.shape == gradient.shape:
                changed = changed[tuple(gradient._indices())]
            known = changed is not None and changed.shape == values.shape
            return bool(((values[changed] if known else values) != 0).any())


def arm(context: Context, way: Way) -> None:
    """Begin to look at them."""
    context.state(UntrackedWrites).arm(way)


class UntrackedWrites:
    """What was written unseen since the last backward calls, in one process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._way: Way | None = None
        self._waiting: deque[_Unseen] = deque(maxlen=_MOST)  # oldest first
        self.taken: deque[_Target] = deque(maxlen=8)
        """The tensors whose `.data` was taken last."""

    def arm(self, way: Way) -> None:
        """Begin."""
        self._way = way
        self._context.calls.watch(way, self._attach)

    # -- writes ------------------------------------------------------------------------------------------------------

    def data_taken(self, tensor: torch.Tensor) -> None:
        """Somebody reads `tensor.data`."""
        with private.plain():
            if tensor.requires_grad and (target := _target(tensor)) is not None:
                self.taken.append(target)

    def before(
        self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType
    ) -> tuple[Callable[[], object], bool] | None:
        """A write under `no_grad`, or after a `.data`, is about to happen; what to call after it, and whether it goes
        to a computed tensor, and not to a leaf."""
        if self._way is None:
            return None
        found = self._way.guarded(lambda: self._before(written, tensor, key, frame))
        return None if found is None else (self._way.entry(found[0]), found[1])

    def _before(
        self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType
    ) -> tuple[Callable[[], None], bool] | None:
        if any(one.key == key for inputs in self._context.thread.given for one in inputs):
            return None  # undeclared_writes.py looks at what a Function does to its inputs
        found = None if written.uncounted else self._reached(tensor, key)
        if found is None:
            return None
        target, how = found
        if target.identity:
            return (self._into_leaf(written, tensor, target, key, frame), False) if how == "data" else None
        if written.op in _ADDING:
            return None
        with private.aside():
            values = numbers(tensor)
            if values is None:
                self._context.bus.not_seen("writes that autograd does not see, to tensors that show no numbers")
                return None
            old = values.clone() if values.nbytes <= _LARGEST else None
            alias = tensor.detach()  # which stays as it is where the write makes the tensor itself larger
        unseen = _Unseen(self._note(written, tensor, key, frame), how, target, clobbers.unnamed(tensor))

        def after() -> None:
            if unseen.has_changed(alias, old):
                self._waiting.append(unseen)

        return after, True

    def _reached(self, tensor: torch.Tensor, key: int) -> tuple[_Target, How] | None:
        """The tensor of the graph that a write goes to, and how it escapes autograd."""
        if not torch.is_grad_enabled():
            whole = tensor._base if tensor._is_view() else tensor
            if whole is not None and whole.requires_grad and (target := _target(whole)) is not None:
                return target, "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        if tensor.requires_grad:
            return None
        return next(((taken, "data") for taken in reversed(self.taken) if taken.is_on(key)), None)

    def _into_leaf(
        self, written: Written, tensor: torch.Tensor, leaf: _Target, key: int, frame: FrameType
    ) -> Callable[[], None]:
        """Through `.data` of a leaf: if what is written comes from a graph, the alias is in that graph afterwards."""
        noted = self._note(written, tensor, key, frame)

        def after() -> None:
            if tensor.requires_grad:
                self._cut_off(noted, "data", leaf, tensor)

        return after

    def assigned(self, noted: Record, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """`tensor.data = value`, which may be in a graph that is cut off there; the tensor itself may be computed."""
        target = _target(tensor) if tensor.requires_grad else None
        if target is None:
            return
        if target.identity:
            if value.requires_grad:
                self._cut_off(noted, "assigned", target, value)
            return
        if (target := target.moved_to(value)) is None:
            return
        source = clobbers.unnamed(value) if value.requires_grad else None
        unseen = _Unseen(noted, "assigned", target, clobbers.unnamed(tensor), source)
        with private.aside():
            values = numbers(tensor)
        small = values is not None and values.nbytes <= _LARGEST
        if unseen.has_changed(value, values if small else None):
            self._waiting.append(unseen)

    def _cut_off(self, noted: Record, how: How, leaf: _Target, value: torch.Tensor) -> None:
        there = leaf.moved_to(value)
        if there is not None and value.grad_fn is not None and not _only_of(value.grad_fn, leaf):
            about = clobbers.unnamed(value)
            self._waiting.append(_Unseen(noted, how, there, about, source=about))

    def _note(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> Record:
        context = self._context
        return record(written, tensor, key, place_of(frame), context.thread.step, context.thread)

    # -- backward ----------------------------------------------------------------------------------------------------

    def _attach(self, backward: Backward) -> End | None:
        """A backward begins: look at the gradients that reach what was written unseen, until it has ended."""
        self.taken.clear()
        waiting = list(self._waiting)
        if not waiting or self._way is None:
            return None
        for unseen in waiting:
            unseen.waited += 1
        inner = {unseen.target.output: unseen for unseen in waiting if not unseen.target.identity}
        leaves = [unseen for unseen in reversed(waiting) if unseen.target.identity]
        hooks, seen, arrived = list[Any](), set(), list[Untracked]()
        for node, following, index in _edges(backward.outputs):
            if (following, index) in seen:
                continue
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                reached = next((unseen for unseen in leaves if unseen.target.is_leaf(leaf)), None)
            else:
                reached = inner.get((following._sequence_nr(), following.name(), index))
            if reached is not None and (node is None or node._sequence_nr() >= reached.record.node):
                seen.add((following, index))
                look = self._reads(reached, index, leaf, node.name() if node is not None else "", backward, arrived)
                hooks.append(private.hook(following.register_prehook, self._way.entry(look)))

        def ended(result: Any, error: BaseException | None) -> None:
            for hook in hooks:
                hook.remove()
            for unseen in waiting:
                if unseen.waited >= _PATIENCE:
                    self._drop(unseen)
            for event in arrived:
                if event.write.site not in backward.explained:
                    self._context.bus.notice(event)

        return ended

    def _drop(self, unseen: _Unseen) -> None:
        with contextlib.suppress(ValueError):  # another thread may have been quicker
            self._waiting.remove(unseen)

    def forget(self) -> None:
        """Drop what waits."""
        self.taken.clear()
        self._waiting.clear()

    def _reads(
        self,
        unseen: _Unseen,
        index: int,
        leaf: torch.Tensor | None,
        node: str,
        backward: Backward,
        arrived: list[Untracked],
    ) -> Callable[[Any], None]:
        def gradient_arrives(gradients: tuple[torch.Tensor | None, ...]) -> None:
            gradient = gradients[index]
            if gradient is None or unseen not in self._waiting:
                return
            if unseen.matters_to(gradient):
                for one in list(self._waiting):
                    if one.target == unseen.target:
                        self._drop(one)
                call: Literal["backward", "grad"] = "grad" if backward.call == "grad" else "backward"
                key = unseen.target.key if leaf is None else private.storage_key(leaf)
                tensor = clobbers.tensor_of(gradient if leaf is None else leaf, key)
                read = Read(node, site_of(backward.place), call)
                arrived.append(Untracked(_write(unseen), unseen.how, tensor, read, unseen.source))

        return gradient_arrives


def _write(unseen: _Unseen) -> Write:
    noted = unseen.record
    return Write(
        noted.written.op,
        site_of(noted.place),
        via="set_data" if unseen.how == "assigned" else "data" if unseen.how == "data" else "operator",
        version_before=noted.version,
        tensor=unseen.tensor,
        step=noted.step,
        in_forward=noted.backwards == 0,
    )


def _edges(outputs: Iterable[Any]) -> Iterator[tuple[Any, Any, int]]:
    """The edges that gradients come along, each with the node that hands them on: None for those of the backward call
    itself, which begins from tensors as they are by then."""
    outputs = list(outputs)
    for output in outputs:
        if isinstance(output, torch.Tensor) and output.grad_fn is not None:
            yield None, output.grad_fn, output.output_nr
    for node in graph.walk(graph.roots_of(outputs)):
        for following, index in node.next_functions:
            if following is not None:
                yield node, following, index


def _target(tensor: torch.Tensor) -> _Target | None:
    """What is remembered of a tensor that requires grad; None for a view, whose graph must not be looked at.

    Reading `grad_fn` of a view can make a failing program pass (torch 2.13; tests/observe/test_never_wrong.py).
    """
    key = private.storage_key(tensor)
    if key is None or tensor._is_view():
        return None
    producer, storage = tensor.grad_fn, private.storage_ref(tensor)
    if producer is None:
        return _Target(key, storage, private.identity(tensor), (graph.UNNUMBERED, "", 0))
    return _Target(key, storage, 0, (producer._sequence_nr(), producer.name(), tensor.output_nr))


def _only_of(root: Any, leaf: _Target) -> bool:
    """Whether a small graph depends on one leaf alone: a parameter put back into bounds, which means no gradient."""
    for count, node in enumerate(graph.walk([root])):
        variable = getattr(node, "variable", None)
        if count > 4 or (variable is not None and not leaf.is_leaf(variable)):
            return False
    return True
