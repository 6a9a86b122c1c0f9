"""Reentrant checkpoints: which memory that a region reads has changed since forward, and what it computes from that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noclobber.observe.checkpoint import captured_tensors
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.fingerprints import Digest, all_known, differ, differs, fingerprint, same_but_for_zeros
from noclobber.observe.core.records import Geometry, geometry
from noclobber.observe.core.save_hooks import Handle
from noclobber.observe.core.write_kernels import Written, tensors, written_by
from noclobber.observe.describe import clobbers
from noclobber.observe.detectors.user_save_hooks import UserSave
from noclobber.observe.torch_api import graph, private

Parts = dict[int, list[Geometry]]
"""Parts of storages: of each, where tensors lie."""


class Before:
    """What a region read when its forward began, as weak references and fingerprints: of what `function` and the
    arguments that are no tensors reach, and of each argument that is one."""

    def __init__(self, function: Any, args: Iterable[Any]) -> None:
        args = list(args)
        self._reached = [(private.Weak(one), _digest(one)) for one in _reached(function, args)]
        self._nodes = [node_of(one) for one in _reached(function, args)]
        self._given = [_digest(one) for one in args if isinstance(one, torch.Tensor)]
        # A leaf that requires no gradient any more is handed none, in a region or not.
        self._leads_back = [one.grad_fn is not None for one in args if isinstance(one, torch.Tensor)]

    def now(self, function: Any, args: Iterable[Any]) -> Now | None:
        """What of that has changed; None where the region reaches other tensors by now."""
        args = list(args)
        reached, given = _reached(function, args), [one for one in args if isinstance(one, torch.Tensor)]
        if len(reached) != len(self._reached) or len(given) != len(self._given):
            return None
        if any(tensor is not was() for tensor, (was, _) in zip(reached, self._reached, strict=True)):
            return None
        digests = [digest for _, digest in self._reached] + self._given
        pairs = zip(reached, self._nodes, strict=True)
        # To a leaf that requires no gradient any more none would be handed, wherever in the graph it is.
        moved = [one for one, node in pairs if node_of(one) not in (node, (False, None) if node == _LEAF else node)]
        # PyTorch gives the region its arguments anew, as leaves: one that was detached in place gets no gradient.
        moved += [one for one, led in zip(given, self._leads_back, strict=True) if led and not one.requires_grad]
        return Now(list(zip(reached + given, digests, strict=True)), moved)


def _reached(function: Any, args: Iterable[Any]) -> list[torch.Tensor]:
    return captured_tensors.tensors_read(function, [one for one in args if not isinstance(one, torch.Tensor)])


def node_of(tensor: torch.Tensor) -> tuple[bool, int | None]:
    """Whether a tensor requires a gradient, and what tells which node makes it.

    Of a view, whose node PyTorch makes anew once it is asked for, the version stands for that. A view that requires one
    where its base does not is a leaf.
    """
    if not tensor.requires_grad:
        return False, None
    base = tensor._base if tensor._is_view() else None
    if base is not None:
        return True, private.version_of(tensor) if base.requires_grad else None
    return True, None if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()


_LEAF = (True, None)


def _digest(tensor: torch.Tensor) -> Digest:
    with private.no_modes():
        return fingerprint(tensor)


class Now:
    """What a region reads when it is run anew, by storage: all of it, and what holds other numbers than in forward."""

    def __init__(self, pairs: list[tuple[torch.Tensor, Digest]], moved: list[torch.Tensor]) -> None:
        self.moved: Parts = {}
        """What has another place in the graph than in forward: cut off, joined to it, or made by another node."""
        for one in moved:
            if (where := private.storage_key(one)) is not None:
                self.moved.setdefault(where, []).append(geometry(one))
        keys = [(private.storage_key(tensor), tensor, digest) for tensor, digest in pairs]
        self.known = {key for key, _, _ in keys if key is not None}
        self.changed: Parts = {}
        self._whole: dict[tuple[int, int], Digest] = {}
        """By address and size."""
        self._counts: set[int] = set()
        others = all_known([differs(_digest(tensor), digest) for _, tensor, digest in keys])
        for (key, tensor, digest), other in zip(keys, others, strict=True):
            if key is not None and (digest is None or (other and not same_but_for_zeros(tensor, digest))):
                self.changed.setdefault(key, []).append(geometry(tensor))
                self._whole[private.address(tensor), tensor.numel()] = digest
                if digest is None or (tensor.dim() == 0 and not tensor.is_floating_point()):
                    self._counts.add(key)  # such as the number of batches that a batch norm has seen

    def calls_for_a_look(self, statistics: set[int]) -> bool:
        """Whether more has changed than counts and `statistics`, which change in every training step."""
        return bool(self.changed.keys() - self._counts - statistics)

    def has_changed(self, handle: Handle) -> bool:
        """Whether a save shows all of a tensor that the region reads, with other bytes than that had in forward."""
        digest = self._whole.get((private.address(handle.alias), handle.alias.numel()))
        return digest is not None and handle.digest is not None and differ(digest, handle.digest)


class Derived(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows, operator by operator, which storages hold anything computed from memory that has changed.

    What comes from elsewhere (numpy, a tensor that was not known before) counts as changed. `lost` is set where a
    changed value leaves for Python, or a random one is drawn that need not be the one of forward. Or else it follows
    what comes of tensors that were `moved` in the graph.
    """

    def __init__(self, now: Now, way: Way, random_is_kept: bool, *, moved: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self._way = now, way
        self.lost = False
        self._found, self._moved = now.moved if moved else now.changed, moved
        self._changed, self._known = set[int](), set(now.known)
        self._random_is_kept = random_is_kept
        self._written: set[int | None] = set()
        self._first = private.next_node()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = self._way.guarded(lambda: written_by(func._schema))
        several = self._way.guarded(lambda: _tensors(args)) if written is not None and "_foreach_" in written.op else ()
        versions = [(one, one._version) for one in several or () if not one.is_inference()]
        result = func(*args, **kwargs)
        for tensor, version in versions:
            if tensor._version == version:  # under a mode these bump no version, see writes.WriteMode
                torch.autograd.graph.increment_version(tensor)
        with private.plain():
            self._way.guarded(lambda: self._follow(func, written, (args, kwargs), result))
        return result

    def _follow(self, func: Any, written: Written | None, given: Any, result: Any) -> None:
        read = _tensors(given)
        if written is not None and written.is_statistics:
            statistics = {id(one) for one in tensors(written, *given)}
            read = [one for one in read if id(one) not in statistics]
        # A number of the program's own; one that was read off a tensor is `lost` already.
        is_constant = func._schema.name == "aten::lift_fresh" and not read[0].dim()
        before = {private.storage_key(one) for one in read}
        changed = not _only_looks_at_shapes(func._schema.name) and not is_constant and any(map(self._is, read))
        made = [private.storage_key(one) for one in _tensors(result)]
        self.lost |= changed and not made and written is None
        self.lost |= not self._random_is_kept and torch.Tag.nondeterministic_seeded in func.tags
        if written is not None and not written.is_statistics:
            into = [private.storage_key(one) for one in tensors(written, *given)]
            self._written.update(into)
            made += into
        for key in made:
            if key is None:
                self.lost = True
            elif changed:
                self._changed.add(key)
            elif key not in before:
                self._changed.discard(key)
        self._known.update(key for key in made if key is not None)

    def _is(self, tensor: torch.Tensor) -> bool:
        key = private.storage_key(tensor)
        if key in self._changed or (key is None and not self._moved):
            return True
        if key in self._found:
            return any(clobbers.touch(geometry(tensor), part) for part in self._found[key])
        return not self._moved and key not in self._known and not _is_list_of_indices(tensor)

    def explains(self, output: torch.Tensor) -> bool:
        """Whether an output was computed from what has changed."""
        return self._is(output)

    def hides(self, output: torch.Tensor) -> bool:
        """Whether an output was overwritten once it had been computed, so that its bytes may tell nothing."""
        return self.explains(output) and private.storage_key(output) in self._written

    def first_changed(self, outputs: Iterable[torch.Tensor]) -> tuple[Any, Handle] | None:
        """A save, with its node, that shows what has changed as it was found, whatever the outputs came to."""
        for node, saved in self._saves(outputs):
            if not isinstance(saved, Handle) or private.storage_key(saved.alias) in self._written:
                continue
            if self.now.has_changed(saved) and clobbers.is_read(saved, node):
                return node, saved
        return None

    def reaches(self, outputs: Iterable[torch.Tensor]) -> bool:
        """Whether the backward of these outputs may read what was computed from memory that has changed."""
        if self.lost or any(self._holds(node, saved) for node, saved in self._saves(outputs)):
            return True
        return any(map(self._keeps, self._nodes(outputs)))

    def _nodes(self, outputs: Iterable[torch.Tensor]) -> Iterator[Any]:
        """The region's own part of the graph; what it closes over may have more behind it."""
        return (node for node in graph.walk(graph.roots_of(outputs)) if node._sequence_nr() >= self._first)

    def _saves(self, outputs: Iterable[torch.Tensor]) -> Iterator[tuple[Any, Any]]:
        for node in self._nodes(outputs):
            for saved in graph.saves_of_or_gone(node):
                content = graph.content(saved)
                if content is not None:
                    yield node, content

    def _holds(self, node: Any, saved: Any) -> bool:
        if isinstance(saved, Handle):
            return self._is(saved.alias) and clobbers.is_read(saved, node) and not _points_into_one(node, saved.alias)
        if isinstance(saved, torch.Tensor):  # a number, which no hook is given
            return private.storage_key(saved) in self._known and self._is(saved)
        if isinstance(saved, UserSave):
            return saved.memory is None or (original := saved.memory.tensor()) is None or self._is(original)
        return True

    def _keeps(self, node: Any) -> bool:
        """What a custom Function keeps elsewhere; what a region in the region will read can't be told."""
        if node.name() == "CheckpointFunctionBackward":
            return True
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        kept = list(object.__getattribute__(node, "__dict__").values())
        return any(map(self._is, _tensors(kept)))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _points_into_one(node: Any, saved: torch.Tensor) -> bool:
    """Whether a node has saved which element it took of a tensor that has only one."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return sizes is not None and math.prod(sizes) == 1 and not saved.is_floating_point() and not saved.is_complex()


def _is_list_of_indices(tensor: torch.Tensor) -> bool:
    """Whether a tensor that no operator made is what torch makes of `[0, 2]` in `t[[0, 2]]`."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return whole and bool(private.storage(tensor).resizable())


def _only_looks_at_shapes(name: str) -> bool:
    return name.endswith("_like") or name.startswith("aten::new_")
