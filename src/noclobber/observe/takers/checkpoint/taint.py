"""Reentrant checkpoints: finds which memory of a region has changed since forward, and what is computed from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.handles import Handle
from noclobber.observe.core.seen.reads import Reads
from noclobber.observe.core.seen.written import tensors, what_is_written
from noclobber.observe.core.writes.operator_mode import OperatorMode
from noclobber.observe.describe import clobbers
from noclobber.observe.takers.user_save_hooks import UserSave
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in
from noclobber.observe.witness.digests import (
    Digest,
    all_known,
    differs,
    fingerprint_aside,
    numbers,
    same,
    same_but_for_zeros,
)
from noclobber.observe.witness.layout import Geometry, geometry, touch

if TYPE_CHECKING:
    from torch._ops import OpOverload

Parts = dict[int, list[Geometry]]
"""Parts of storages, by storage key: where in it tensors lie."""


class Before:
    """What a region read when its forward began, as weak references and fingerprints.

    That is each argument that is a tensor, and the tensors that the function and its other arguments can reach.
    """

    def __init__(self, read: Reads) -> None:
        self._reached = [(tensor_state.Weak(tensor), fingerprint_aside(tensor)) for tensor in read.tensors]
        self._nodes = [node_of(tensor) for tensor in read.tensors]
        self._given = [fingerprint_aside(argument) for argument in read.given]
        # Only arguments with a node: a leaf that no longer requires a gradient gets none, with or without a region.
        self._leads_back = [tensor_state.is_computed(argument) for argument in read.given]

    def now(self, read: Reads) -> Now | None:
        """Return what has changed since forward began; None if the region reaches other tensors now."""
        reached, given = read.tensors, read.given
        if len(reached) != len(self._reached) or len(given) != len(self._given):
            return None
        if any(tensor is not was() for tensor, (was, _) in zip(reached, self._reached, strict=True)):
            return None
        digests = [digest for _, digest in self._reached] + self._given
        pairs = zip(reached, self._nodes, strict=True)
        # A leaf that no longer requires a gradient has not moved: it gets no gradient, wherever it is in the graph.
        moved = [
            tensor for tensor, node in pairs if node_of(tensor) not in (node, (False, None) if node == _LEAF else node)
        ]
        # PyTorch gives the region its arguments again as leaves. One that was detached in place gets no gradient.
        moved += [
            tensor for tensor, led in zip(given, self._leads_back, strict=True) if led and not tensor.requires_grad
        ]
        return Now(list(zip(reached + given, digests, strict=True)), moved)


def node_of(tensor: torch.Tensor) -> tuple[bool, int | None]:
    """Return whether a tensor requires a gradient, and a number that identifies the node that made it; None for a leaf.

    For a view it is that of its base, because reading the node of a view makes PyTorch build a new one: a write in the
    graph to the base or to any view of it gives the base another node. A leaf may be a view itself, of a tensor outside
    of the graph. A view of it has its version: after any write, PyTorch builds a node that leads nowhere (torch 2.13;
    tests/observe/preserve/test_preserve_regions.py).
    """
    if not tensor.requires_grad:
        return False, None
    base = tensor._base if tensor._is_view() else None
    if base is not None and base.requires_grad:
        return True, _BASE_IS_LEAF if base.grad_fn is None else base.grad_fn._sequence_nr()
    if tensor.is_leaf:
        return True, None
    if base is not None:
        return True, tensor_state.version_of(tensor)
    return True, None if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()


_BASE_IS_LEAF = -1
"""In place of a node's number, for a view of a leaf."""
_LEAF = (True, None)


class Now:
    """What a region reads in its second run, by storage: `known` is all of it, `changed` holds other numbers than in
    forward."""

    def __init__(self, pairs: list[tuple[torch.Tensor, Digest]], moved: list[torch.Tensor]) -> None:
        self.moved: Parts = {}
        """Tensors with another place in the graph than in forward: cut off, joined to it, or made by another node."""
        for tensor in moved:
            if (where := storages.storage_key(tensor)) is not None:
                self.moved.setdefault(where, []).append(geometry(tensor))
        keys = [(storages.storage_key(tensor), tensor, digest) for tensor, digest in pairs]
        self.known = {key for key, _, _ in keys if key is not None}
        self.changed: Parts = {}
        self._whole: dict[tuple[int, int], Digest] = {}
        """The fingerprints in forward of whole tensors that changed, by address and number of elements."""
        self._counts: set[int] = set()
        """Storages of whole-number scalars, which count something, and of tensors without a fingerprint."""
        others = all_known([differs(fingerprint_aside(tensor), digest) for _, tensor, digest in keys])
        for (key, tensor, digest), other in zip(keys, others, strict=True):
            if key is not None and (digest is None or (other and not same_but_for_zeros(tensor, digest))):
                self.changed.setdefault(key, []).append(geometry(tensor))
                self._whole[storages.address(tensor), tensor.numel()] = digest
                if digest is None or (tensor.dim() == 0 and not tensor.is_floating_point()):
                    self._counts.add(key)  # such as the number of batches that a batch norm has seen

    def calls_for_a_look(self, statistics: set[int]) -> bool:
        """Return True if more has changed than counts and `statistics`, which change in every training step."""
        return bool(self.changed.keys() - self._counts - statistics)

    def has_changed(self, handle: Handle) -> bool:
        """Return True if a save is on the whole of a tensor that the region reads, with other bytes than in forward."""
        digest = self._whole.get((storages.address(handle.alias), handle.alias.numel()))
        return digest is not None and handle.digest is not None and not same(digest, handle.digest)


class Derived(OperatorMode):  # type: ignore[no-untyped-call]
    """Follows, operator by operator, which storages hold values computed from changed memory; or, if `moved`, values
    computed from tensors whose place in the graph changed.

    Memory from elsewhere (numpy, a tensor that was not known before) counts as changed. `lost` is set when a changed
    value is read into Python, or when a random number is drawn that may differ from forward.
    """

    def __init__(self, now: Now, way: Way, random_is_kept: bool, *, moved: bool = False) -> None:
        super().__init__(way, self._about_to_run)
        self.now = now
        self.lost = False
        self._wiped_out: set[int | None] = set()
        """Storages of changed values that were multiplied by zeros which require a gradient. Many shortcuts begin with
        such weights. The result is then the same as in forward, but the gradient of the zeros is wrong."""
        self._found, self._moved = now.moved if moved else now.changed, moved
        self._changed: set[int] = set()
        self._known = set(now.known)
        self._random_is_kept = random_is_kept
        self._written: set[int | None] = set()
        self._first = engine_state.next_node()

    def _about_to_run(
        self, func: OpOverload[..., object], args: tuple[object, ...], kwargs: dict[str, object], _: object
    ) -> Callable[[object], None]:
        def ran(result: object) -> None:
            with modes.plain():
                self._follow(func, (args, kwargs), result)

        return ran

    def _follow(
        self, func: OpOverload[..., object], given: tuple[tuple[object, ...], dict[str, object]], result: object
    ) -> None:
        """Record what an operator that has run computed, and from what. `given` are its arguments."""
        read, written, name = list(tensors_in(given)), what_is_written(func), func._schema.name
        if written is not None and written.is_statistics:
            statistics = {id(tensor) for tensor in tensors(written, *given)}
            read = [tensor for tensor in read if id(tensor) not in statistics]
        # A number that the program wrote itself. If it was read from a changed tensor, `lost` is set already.
        is_constant = name == "aten::lift_fresh" and not read[0].dim()
        only_looks_at_shapes = name.endswith("_like") or name.startswith("aten::new_")
        before = {storages.storage_key(tensor) for tensor in read}
        changed = not only_looks_at_shapes and not is_constant and any(map(self.explains, read))
        made = [storages.storage_key(tensor) for tensor in tensors_in(result)]
        if changed and not self._moved and _has_factor_of_zeros(name, given[0]):
            self._wiped_out.update(storages.storage_key(tensor) for tensor in read if self.explains(tensor))
        self.lost |= changed and not made and written is None
        self.lost |= not self._random_is_kept and torch.Tag.nondeterministic_seeded in func.tags
        into: list[int | None] = []
        if written is not None and not written.is_statistics:
            into = [storages.storage_key(tensor) for tensor in tensors(written, *given)]
            self._written.update(into)
            made += into
        for key in made:
            if key is None:
                self.lost = True
            elif changed:
                self._changed.add(key)
            elif key not in before:
                self._changed.discard(key)
            if key not in before and key not in into:  # new memory, at the address of some that is gone
                self._written.discard(key)
                self._wiped_out.discard(key)
        self._known.update(key for key in made if key is not None)

    def explains(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor holds what this follows: changed memory or memory of moved tensors, or values
        computed from it."""
        key = storages.storage_key(tensor)
        if key in self._changed or (key is None and not self._moved):
            return True
        if key in self._found:
            return any(touch(geometry(tensor), part) for part in self._found[key])
        return not self._moved and key not in self._known and not _is_list_of_indices(tensor)

    def hides(self, output: torch.Tensor) -> bool:
        """Return True if an output was computed from what this follows and overwritten in place, so that equal bytes
        prove nothing."""
        return self.explains(output) and storages.storage_key(output) in self._written

    def first_changed(self, outputs: Iterable[torch.Tensor]) -> tuple[Node, Handle] | None:
        """Return a node and its save that holds changed memory as the region found it; None where there is none.

        Such a save is wrong even if the outputs are equal.
        """
        for node, saved in self._saves(outputs):
            if not isinstance(saved, Handle) or storages.storage_key(saved.alias) in self._written:
                continue
            if self.now.has_changed(saved) and clobbers.is_read(saved, node):
                return node, saved
        return None

    def wipes_out(self, outputs: Iterable[torch.Tensor]) -> bool:
        """Return True if the outputs do not show a change because of zeros, but their backward reads it."""
        return any(
            isinstance(saved, Handle)
            and storages.storage_key(saved.alias) in self._wiped_out
            and self._holds(node, saved)
            for node, saved in self._saves(outputs)
        )

    def reaches(self, outputs: Iterable[torch.Tensor]) -> bool:
        """Return True if the backward of these outputs may read what was computed from changed memory."""
        if self.lost or any(self._holds(node, saved) for node, saved in self._saves(outputs)):
            return True
        return any(map(self._keeps, self._nodes(outputs)))

    def _nodes(self, outputs: Iterable[torch.Tensor]) -> Iterator[Node]:
        """Yield the nodes that the region itself made. Tensors that it closes over may lead to a graph outside."""
        return (node for node in graph.walk(graph.roots_of(outputs)) if node._sequence_nr() >= self._first)

    def _saves(self, outputs: Iterable[torch.Tensor]) -> Iterator[tuple[Node, object]]:
        for node in self._nodes(outputs):
            for saved in graph.saves_of_or_gone(node):
                content = graph.content(saved)
                if content is not None:
                    yield node, content

    def _holds(self, node: Node, saved: object) -> bool:
        """Return True if a node may read changed memory, or values computed from it, in this save."""
        if isinstance(saved, Handle):
            return (
                self.explains(saved.alias) and clobbers.is_read(saved, node) and not _points_into_one(node, saved.alias)
            )
        if isinstance(saved, torch.Tensor):  # a number: PyTorch passes it to no hook
            return storages.storage_key(saved) in self._known and self.explains(saved)
        if isinstance(saved, UserSave):
            return saved.is_copy or (original := saved.tensor()) is None or self.explains(original)
        return True

    def _keeps(self, node: Any) -> bool:
        """Return True if a node keeps changed memory outside of its saves, as an attribute of a custom Function's ctx.

        Also True for a region inside the region, because noclobber cannot know what that will read.
        """
        if node.name() == "CheckpointFunctionBackward":
            return True
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        kept = list(object.__getattribute__(node, "__dict__").values())
        return any(map(self.explains, tensors_in(kept)))


_FACTORS = {
    **dict.fromkeys(("aten::mul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::convolution"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::addmv", "aten::baddbmm", "aten::addcmul"), (1, 2)),
    **dict.fromkeys(("aten::native_group_norm", "aten::native_batch_norm"), (1,)),
    **dict.fromkeys(("aten::native_layer_norm", "aten::_fused_rms_norm"), (2,)),
}
"""The positions of an operator's factors. If a factor is all zeros, the result does not depend on the other factors."""


def _has_factor_of_zeros(name: str, args: tuple[object, ...]) -> bool:
    """Return True if a factor of an operator is all zeros and requires a gradient: backward then reads the others."""
    factors = (args[position] for position in _FACTORS.get(name, ()) if position < len(args))
    return any(isinstance(factor, torch.Tensor) and factor.requires_grad and _is_zero(factor) for factor in factors)


def _is_zero(tensor: torch.Tensor) -> bool:
    with modes.aside():
        held = numbers(tensor)
        return held is not None and held.numel() > 0 and not held.any()


def _points_into_one(node: object, saved: torch.Tensor) -> bool:
    """Return True if a node saved an index into a tensor of one element: there is only one right index."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return sizes is not None and math.prod(sizes) == 1 and not saved.is_floating_point() and not saved.is_complex()


def _is_list_of_indices(tensor: torch.Tensor) -> bool:
    """Return True if a tensor that no operator made looks like what torch makes of `[0, 2]` in `t[[0, 2]]`."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return whole and bool(storages.storage(tensor).resizable())
