"""Lost hooks: a write to a view replaces its node, and the hooks on the old node are not run for the new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

from noclobber.model.seen.events import Tensor
from noclobber.model.seen.silent import LostHook
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context, Look
from noclobber.observe.core.seen.records import Backward, Record, record
from noclobber.observe.core.seen.sites import Place, caller, place_of, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.tensors import storages

_MOST = 64
"""Views that are known at a time."""


@dataclass(slots=True, eq=False)
class _Hooked:
    """A view on which the program registered a hook.

    `made` is what made it then, `behind` the first output of the node that its gradient flows to next.
    """

    described: Callable[[], Tensor]
    place: Place | None
    key: int
    storage: storages.StorageRef
    """Tells whether the memory of `key` is still there."""
    made: graph.Output
    behind: graph.Output
    write: Record | None = None
    """The first write to the view since then."""


def arm(context: Context, way: Way) -> None:
    """Watch the hooks that the program registers on tensors."""
    hooks = context.state(HookedViews)
    hooks.arm(way)
    way.after(torch.Tensor, "register_hook", lambda _, tensor, *__, **___: hooks.registered(tensor, caller()))


class HookedViews:
    """The views of this process that have hooks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._hooked: list[_Hooked] = []
        self._looking: Look = self._look

    def arm(self, way: Way) -> None:
        """Begin to watch backward calls, and the writes to the views that are known from before."""
        self._looking = way.entry(self._look)
        for hooked in self._hooked:
            self._context.attend(self._looking, [hooked.key])
        self._context.calls.watch(way, self._backward_begins, among=self._hooked)

    def registered(self, tensor: torch.Tensor, place: Place | None) -> None:
        """Record a hook on a view. Reading the node of a view is safe here: PyTorch itself has just read it."""
        key = storages.storage_key(tensor)
        if key is None or not tensor._is_view() or tensor.grad_fn is None or not tensor.grad_fn.next_functions:
            return
        behind = tensor.grad_fn.next_functions[0][0]
        if len(self._hooked) >= _MOST:
            self._make_room()
        if behind is not None and len(self._hooked) < _MOST:
            about, made = clobbers.later_of(tensor), graph.output_ref(tensor.grad_fn, 0)
            self._context.attend(self._looking, [key])
            storage = storages.storage_ref(tensor)
            self._hooked.append(_Hooked(about, place, key, storage, made, graph.output_ref(behind, 0)))

    def _make_room(self) -> None:
        """Forget the views that can no longer be written, as their memory is gone; if all of these were written before,
        the oldest one, as a backward may still reach it."""
        gone = [hooked for hooked in self._hooked if hooked.storage.expired()]
        forgotten = [hooked for hooked in gone if hooked.write is None] or gone[:1]
        for hooked in forgotten:
            self._context.ignore(self._looking, [hooked.key])
        self._hooked[:] = [hooked for hooked in self._hooked if hooked not in forgotten]

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        for hooked in self._hooked:
            if hooked.key == key and hooked.write is None and storages.is_at(hooked.storage, key):
                hooked.write = record(written, tensor, key, place_of(frame), self._context.thread)

    def _backward_begins(self, backward: Backward) -> None:
        """Report the hooks that this backward would have run without the write."""
        asked = {output.number for hooked in self._hooked for output in (hooked.made, hooked.behind)}
        nodes = [node for node in graph.walk(graph.roots_of(backward.outputs)) if node._sequence_nr() in asked]
        left = []
        for hooked in self._hooked:
            if not any(hooked.behind.is_of(node, 0) for node in nodes):
                left.append(hooked)
                continue
            self._context.ignore(self._looking, [hooked.key])
            if hooked.write is not None and not any(hooked.made.is_of(node, 0) for node in nodes):
                about = hooked.described()
                write, read = clobbers.write_of(hooked.write, about), clobbers.read_of(backward)
                self._context.bus.notice(LostHook(about, site_of(hooked.place), write, read))
        self._hooked[:] = left
