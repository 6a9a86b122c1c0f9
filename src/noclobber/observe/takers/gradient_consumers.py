"""Finds out which part of the graph gets the changed bytes of a gradient that code overwrote in a backward."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from noclobber.model.seen.events import Tensor
from noclobber.model.seen.silent import GradientWrite
from noclobber.model.source import Owner, owner_of
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.writes.operator_mode import OperatorMode
from noclobber.observe.torch_api.autograd import graph, hook_stack
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, fingerprint, same, same_but_for_zeros
from noclobber.observe.witness.layout import geometry, touch
from noclobber.observe.witness.witness import Change, Witness, change

Notice = Callable[[GradientWrite], None]


def is_of_the_engine(frame: FrameType) -> bool:
    """Return True if the engine itself calls an operator. In its own threads the only frame is noclobber's."""
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back  # the mode of a fake run is asked before the operator
    code = frame.f_code
    return code.co_name == ENGINE or owner_of(code.co_filename) is Owner.NOCLOBBER


ENGINE = "_engine_run_backward"


class Spoil:
    """A gradient that a node was given and whose code writes it: its bytes as they were handed over. Keeps no memory
    alive."""

    def __init__(self, tensor: torch.Tensor, node: Node, event: GradientWrite, described: Callable[[], Tensor]) -> None:
        self.node, self.event, self._described = node, event, described
        self.handed = Witness(storages.storage_key(tensor) or 0, tensor, fingerprint(tensor), geometry(tensor))
        self.ran = False
        """True once the node has run past the hooks of its tensors."""
        self.told = False
        self.changed: bool | None = None
        """True if the write changed the bytes. None until the code that wrote has returned."""
        self.heirs = {following for following, _ in node.next_functions}
        """The nodes that get the changed bytes rightly: the code that wrote passed the bytes on to them."""
        self._kept: Digest = None

    def is_on(self, tensor: object) -> bool:
        """Return True if a tensor overlaps the bytes that were written."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        if storages.storage(tensor)._cdata != self.handed.storage.cdata:
            return False
        return touch(geometry(tensor), self.handed.where)

    def is_on_any(self, tensors: Iterable[object] | None) -> bool:
        """Return True if one of the tensors overlaps the bytes that were written."""
        return any(self.is_on(tensor) for tensor in tensors or ())

    def settle(self) -> bool:
        """Return True if the write changed the bytes and somebody still holds them. Looked up once, then remembered.

        Where there are no bytes to compare, as in a fake run, each write counts.
        """
        if self.changed is None:
            before, now = self.handed.digest, self.handed.digest_now()
            self.changed = now is not None and change(before, now, waits=True) is Change.BYTES
            self.changed |= before is None and self.handed.now() is not None
        return self.changed

    def keep(self) -> bool:
        """Remember the bytes as this backward leaves them. Returns False if they did not change, or nobody holds them
        any more."""
        self._kept, self.told = self.handed.digest_now(), False
        return bool(self.changed) and self._kept is not None

    def is_as_kept(self) -> bool:
        """Return True if the bytes are as `keep` found them: the program has not filled them again."""
        return same(self.handed.digest_now(), self._kept)

    def tell(self, reader: Node | None, notice: Notice) -> None:
        """Report the write once; never if zeros alone have changed, to 0.0 or -0.0. `reader` is the node that gets the
        changed bytes; None if none does."""
        if self.told:
            return
        self.told, shown = True, self.handed.now()
        if shown is None or not same_but_for_zeros(shown, self.handed.digest):
            write = replace(self.event.write, tensor=self._described())
            name = reader.name() if reader is not None else ""
            notice(replace(self.event, write=write, read=replace(self.event.read, node=name)))


class Deliveries:
    """Where the gradients of one backward call go. After the first write to one, every node that runs is checked."""

    def __init__(self, call: Backward, way: Way, notice: Notice, hooked: Container[Node]) -> None:
        self._notice, self._hooked = notice, hooked
        self.given = call.gradients
        self.spoils: list[Spoil] = []
        self._by_storage: dict[int, list[Spoil]] = {}
        self._outputs, self._inputs, self._way = call.outputs, call.inputs, way
        self._hooks: list[RemovableHandle] = []
        self._nodes: list[Node] = []
        self._open: list[Spoil] = []
        """Those of nodes that have not run to their end."""
        self._has_changed = False
        self._passed_on: list[tuple[Spoil, Node]] = []
        """The heirs of the node that ran last. What it passes on has come to them before the next node runs."""

    def expect(self, spoil: Spoil) -> None:
        """Record a gradient that is about to be written, and hook the nodes of the graph at the first one.

        The node of a Function calls `returned` and needs no hook. It gets one only if the program itself has hooked
        it: where there is a hook, no Function may add to the gradients that other nodes have passed on so far
        (`ctx.input_grad_buffers`, torch 2.14; tests/observe/detectors/test_gradient_buffers.py).
        """
        if any(
            known.node is spoil.node and known.handed.storage.cdata == spoil.handed.storage.cdata
            for known in self._open
        ):
            return
        self._open.append(spoil)
        self.spoils.append(spoil)
        self._by_storage.setdefault(spoil.handed.storage.cdata, []).append(spoil)
        if not self._nodes:
            self._nodes = list(graph.walk(graph.roots_of(self._outputs)))
            gets, made = self._way.entry(self._gets), self._way.entry(self.returned)
            for node in self._nodes:
                self._hooks.append(hook_stack.hook(node.register_prehook, partial(gets, node)))
                if node.next_functions and not (isinstance(node, BackwardCFunction) and node not in self._hooked):
                    self._hooks.append(hook_stack.hook(node.register_hook, partial(made, node)))

    def _changed(self, tensor: object) -> Iterator[Spoil]:
        """Yield the overwritten gradients that a tensor lies on."""
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            for spoil in self._by_storage.get(storages.storage(tensor)._cdata, ()):
                if spoil.settle() and spoil.is_on(tensor):
                    yield spoil

    def _gets(self, node: Node, gradients: tuple[object, ...]) -> None:
        """A node is about to run, and gets these gradients."""
        self._arrive()
        for spoil in list(self._open):
            if node is spoil.node:
                spoil.ran = True
            else:
                self._close(spoil)
        for spoil in {spoil for gradient in gradients for spoil in self._changed(gradient)}:
            if node is not spoil.node and node not in spoil.heirs:
                spoil.tell(node, self._notice)

    def returned(self, node: Node, made: Any, _: object = None) -> None:
        """A node has run and returned `made`: a node that it passes the written bytes on to gets them rightly."""
        self._arrive()
        for spoil in list(self._open):
            if node is spoil.node:
                spoil.heirs, spoil.ran = set(), True
            self._close(spoil)
        if not self._has_changed:
            return
        following = [after for after, _ in node.next_functions]
        made = made if isinstance(made, (tuple, list)) else (made,)
        handed = list(zip(following, made, strict=True)) if len(made) == len(following) else []
        for after, each in handed or [(after, each) for after in following for each in made]:
            self._passed_on += [(spoil, after) for spoil in self._changed(each) if after is not None]
        to = [(after, tensor_state.identity(each)) for after, each in handed if isinstance(each, torch.Tensor)]
        # Nobody takes it off: the engine has each node begin with the modes of the call (torch 2.10 to 2.15;
        # tests/observe/detectors/test_gradient_writes.py).
        modes.push_mode(OperatorMode(self._way, partial(self._added, following, to)))

    def _close(self, spoil: Spoil) -> None:
        """Compare the bytes: the code that wrote has returned."""
        self._open.remove(spoil)
        self._has_changed |= spoil.settle()

    def _arrive(self) -> None:
        """Make heirs of those that the last node passed the written bytes on to."""
        for spoil, after in self._passed_on:
            spoil.heirs.add(after)
        self._passed_on.clear()

    def _added(
        self,
        following: list[Node | None],
        handed: list[tuple[Node | None, int]],
        func: Any,
        args: tuple[Any, ...],
        _: object,
        frame: FrameType,
    ) -> None:
        """An operator was called after a node had run: the engine may add up what the `following` nodes get.

        The sum has two parts: what the node was given before, and what it is given now, which tells the node.
        """
        if func._schema.name not in ("aten::add", "aten::add_") or not is_of_the_engine(frame):
            return
        first, part = map(tensor_state.identity, args[:2])
        at = max((index for index, (_, each) in enumerate(handed) if each == part), default=len(handed))
        getting = [after for after, each in handed if each == part] or following
        if any((after, first) in handed[:at] for after in getting):
            return  # the node that has run gives both parts
        for spoil in self._changed(args[0]):
            heir = next((after for after in getting if after in spoil.heirs), None)
            if heir is None:
                spoil.tell(getting[0], self._notice)
            spoil.heirs.discard(heir)

    def stop(self) -> None:
        """Take the hooks off: the backward has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def finish(self, result: Any) -> None:
        """Check what the backward leaves: the gradients that it returns, and those of leaves. `result` is what the
        engine returned."""
        self._arrive()
        results = [(_node_of(one, self._nodes), each) for one, each in zip(self._inputs, result or (), strict=False)]
        leaves = [(node, node.variable.grad) for node in self._nodes if hasattr(node, "variable")]
        for node, gradient in (*results, *leaves):
            for spoil in self._changed(gradient):
                # The engine puts aside what `grad` returns before any hook if the node runs, else after the node's
                # hooks.
                own = node is spoil.node and not (spoil.ran and (node, gradient) in results)
                if not own and node not in spoil.heirs:
                    spoil.tell(node, self._notice)


def _node_of(tensor: torch.Tensor | GradientEdge, nodes: Iterable[Node]) -> Node | None:
    """Return the node of a tensor or edge that the program wants a gradient for; `nodes` are those of the graph.

    PyTorch gives no edge of a leaf whose memory was made in inference mode. A graph leads to such a leaf only if it got
    that memory later. None otherwise (torch 2.10 to 2.15; tests/observe/core/test_inference.py).
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor.node
    if tensor.is_leaf and tensor.is_inference():
        return next((node for node in nodes if getattr(node, "variable", None) is tensor), None)
    return torch.autograd.graph.get_gradient_edge(tensor).node
