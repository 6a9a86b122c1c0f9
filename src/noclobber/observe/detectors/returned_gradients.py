"""Finds custom backwards that write again to memory in which they have returned a gradient that is still needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.silent import GradientWrite
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import moment, reading
from noclobber.observe.core.seen.sites import site_of
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import geometry, touch
from noclobber.observe.witness.witness import Witness

_MOST = 64
"""Memories that are known at a time."""


class _Returned(NamedTuple):
    """A gradient that a backward returned in memory which something else holds too."""

    handed: Witness
    since: int
    """The moment when it was returned."""
    leaf: tensor_state.Weak[torch.Tensor] | None
    """The leaf that got it; None where an operator did."""
    described: Callable[[], Tensor]

    def is_below(self, tensor: torch.Tensor | None) -> bool:
        """Return True if a tensor shows these bytes."""
        return tensor is not None and self.handed.is_below(tensor) and touch(geometry(tensor), self.handed.where)

    def is_needed(self) -> bool:
        """Return True if the leaf that got the gradient still has it as its `.grad`."""
        leaf = self.leaf() if self.leaf is not None else None
        return leaf is not None and self.is_below(leaf.grad)


def arm(context: Context, way: Way) -> None:
    """Look at what each backward of a custom Function returns."""
    context.customs.watch(way, ReturnedGradients(context, way).begins)


class ReturnedGradients:
    """The gradients that custom Functions have returned in memory of theirs, by its storage, the newest last.

    PyTorch copies no gradient that nobody else seems to hold: a view of a buffer becomes the `.grad` of a leaf, or what
    the next node gets (torch 2.13, accumulate_grad.h; tests/observe/detectors/test_returned_gradients.py).
    """

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._returned: OrderedDict[int, list[_Returned]] = OrderedDict()

    def begins(self, node: Any, args: tuple[object, ...]) -> Callable[[object], None] | None:
        """Return what to call when the backward of a Function that is not PyTorch's own has ended."""
        return None if node._forward_cls.__module__.startswith("torch.") else partial(self._ended, node, args)

    def _ended(self, node: Any, args: tuple[object, ...], result: object) -> None:
        results = result if isinstance(result, tuple) else (result,)
        if all(not isinstance(one, torch.Tensor) or storages.is_only_holder(one) for one in results):
            return
        given = {storages.storage_key(one) for one in tensor_state.tensors_in(args)}
        # Of an argument that needs no gradient there is no node (torch 2.13, python_function.cpp).
        asked = [one for one, needs in zip(results, node.needs_input_grad, strict=False) if needs]
        receivers = [receiver for receiver, _ in node.next_functions if receiver is not None]
        for one, receiver in zip(asked, receivers, strict=False):
            if isinstance(one, torch.Tensor) and one.layout is torch.strided and not storages.is_only_holder(one):
                key = storages.storage_key(one)
                if key is not None and key not in given:
                    self._take(node, one, key, receiver)

    def _take(self, node: Any, gradient: torch.Tensor, key: int, receiver: Any) -> None:
        """Report the gradients that lay where a backward returns another one, and remember that."""
        known = [one for one in self._returned.pop(key, ()) if storages.is_at(one.handed.storage, key)]
        over = [one for one in known if one.is_below(gradient)]
        for one in over:
            if gradient._version != one.handed.version and one.is_needed():
                self._tell(node._forward_cls, one)
        variable = getattr(receiver, "variable", None)
        leaf = None if variable is None else tensor_state.Weak[torch.Tensor](variable)
        handed = Witness(key, gradient, where=geometry(gradient))
        self._context.memory.read_again_by(handed, [key])
        newest = _Returned(handed, moment(), leaf, clobbers.later_of(gradient))
        self._returned[key] = [*(one for one in known if one not in over), newest]
        if len(self._returned) > _MOST:
            self._returned.popitem(last=False)
        if over and leaf is None:  # memory that is used again: what if the next node has not run by then?
            self._watch(node._forward_cls, newest, receiver)

    def _watch(self, function: type, returned: _Returned, receiver: Node) -> None:
        """Look at what a node is given that has got a gradient in memory that is used again."""

        def gets(gradients: tuple[object, ...]) -> None:
            handle.remove()
            for one in tensor_state.tensors_in(gradients):
                if returned.is_below(one) and one._version != returned.handed.version:
                    self._tell(function, returned)

        handle = hook_stack.hook(receiver.register_prehook, self._way.entry(gets))

    def _tell(self, function: Any, one: _Returned) -> None:
        since = self._context.memory.writes_since(one.since, one.handed.key)
        writes = [noted for noted in since if touch(noted.geometry, one.handed.where)]
        code = getattr(function.backward, "__code__", None)
        write = Write("", site_of(None if code is None else (code, 0, None)), via="foreign", in_forward=False)
        if writes:
            write = clobbers.write_of(writes[-1], one.described())
        event = GradientWrite(write, "function", function.__name__, clobbers.read_of(reading()), returned=True)
        self._context.bus.notice(event)
