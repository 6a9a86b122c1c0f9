"""Finds out which part of the graph gets the changed bytes of a gradient that code overwrote in a backward."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.events import Tensor
from noclobber.model.overlap import overlap
from noclobber.model.silent import GradientWrite
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.fingerprints import Digest, fingerprint, same, same_but_for_zeros
from noclobber.observe.core.records import Backward, geometry, region, tensor_on
from noclobber.observe.torch_api import graph, private

if TYPE_CHECKING:
    from torch.autograd.graph import GradientEdge, Node
    from torch.utils.hooks import RemovableHandle

Notice = Callable[[GradientWrite], None]
HOLDS = torch.__version__ < "2.13"
"""True if the engine itself holds the gradients that it gives to the backward of a Function while that runs."""
_given: dict[object, tuple[object, ...]] = {}
"""The arguments that the engine holds in this way, by call."""


def hold(args: tuple[object, ...]) -> Callable[[], object]:
    """Note what the engine holds while the backward of a Function runs. Returns what to call when that has ended."""
    call = object()
    _given[call] = args
    return lambda: _given.pop(call, None)


def uses(tensor: torch.Tensor) -> int:
    """Return how many references to a tensor there are, without those of the engine.

    (tests/observe/detectors/test_gradient_writes.py)
    """
    return private.use_count(tensor) - sum(argument is tensor for args in list(_given.values()) for argument in args)


def holders(tensor: torch.Tensor) -> int:
    """Return how many tensors share the tensor's storage, this tensor included."""
    # Minus one: the Python object of the storage, which this function makes, counts as a holder.
    storage = private.storage(tensor)
    return private.storage_holders(storage._cdata) - 1


def _is_other(tensor: torch.Tensor, before: Digest) -> bool:
    """Return True if a gradient holds other numbers than when its fingerprint was `before`; 0.0 and -0.0 are equal."""
    now = fingerprint(tensor)
    return now is not None and not same(now, before) and not same_but_for_zeros(tensor, before)


class Spoil:
    """A write into a gradient, while noclobber does not yet know who else gets that gradient. Keeps no memory alive."""

    def __init__(
        self,
        tensor: torch.Tensor,
        given: torch.Tensor,
        node: Node,
        event: GradientWrite,
        described: Callable[[], Tensor],
    ) -> None:
        self.node, self.event, self._described = node, event, described
        self.others = 0
        """How many others hold the gradient that the node was given, or a tensor on the same bytes."""
        self.passed = 0
        """How many of the `others` are gradients that the program passed to a backward call under way. The call holds
        them until it ends."""
        self._given = private.Weak(given)
        self._all = given.nbytes == private.storage(given).nbytes()
        self.counted = False
        """True once the node has run and `others` is known."""
        self.storage = private.storage_ref(tensor)
        self.told = False
        self.changed: bool | None = None
        """True if the write changed the bytes. None until the code that wrote has returned."""
        self.heirs = {following for following, _ in node.next_functions}
        """The nodes that get the changed bytes rightly: the code that wrote passed the bytes on to them."""
        self._geometry, self._region = geometry(tensor), region(geometry(tensor))
        self._before = fingerprint(tensor)
        self._kept: Digest = None

    def is_on(self, tensor: object) -> bool:
        """Return True if a tensor overlaps the bytes that were written."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        if private.storage(tensor)._cdata != self.storage.cdata:
            return False
        other = region(geometry(tensor))
        return other is None or self._region is None or overlap(other, self._region)

    def is_on_any(self, tensors: Iterable[object] | None) -> bool:
        """Return True if one of the tensors overlaps the bytes that were written."""
        return any(self.is_on(tensor) for tensor in tensors or ())

    def settle(self) -> bool:
        """Return True if the write changed the bytes and somebody still holds them. Looked up once, then remembered."""
        if self.changed is None:
            with private.aside():
                shown = tensor_on(self.storage, self._geometry)
                self.changed = shown is not None and _is_other(shown, self._before)
        return self.changed

    def count(self, held: tuple[object, ...], made: tuple[object, ...] = ()) -> None:
        """Count the `others`, once, when the code that wrote has returned.

        `held` is what the engine holds for the node itself, `made` what the node returned.
        """
        given = self._given()
        if self.counted:
            return
        self.counted = True
        views = sum(1 for tensor in (*held, *made) if tensor is not given and self.is_on(tensor))
        if given is None:
            # A tensor on other bytes of the same storage does not hold these bytes.
            self.others = private.storage_holders(self.storage.cdata) - views if self._all else 0
            return
        whole = given if given._base is None else given._base
        sharing = holders(given) - 1 - (whole is not given)
        # Python's own reference counts as one, and each view holds its base.
        self.others = uses(given) - 1 - sum(tensor is given for tensor in held) - sharing
        if whole is not given:
            self.others += uses(whole) - 2 - sharing
        if self._all:
            self.others = max(self.others, 0) + sharing - views

    def _fingerprint(self) -> Digest:
        """Return the fingerprint of the bytes as they are now; None where nobody holds them any more."""
        with private.aside():
            shown = tensor_on(self.storage, self._geometry)
            return None if shown is None else fingerprint(shown)

    def keep(self) -> bool:
        """Remember the bytes as this backward leaves them. Returns False if they did not change, or nobody holds them
        any more."""
        self._kept, self.told = self._fingerprint(), False
        return bool(self.changed) and self._kept is not None

    def is_as_kept(self) -> bool:
        """Return True if the bytes are as `keep` found them: the program has not filled them again."""
        return same(self._fingerprint(), self._kept)

    def tell(self, reader: str, notice: Notice) -> None:
        """Report the write once. `reader` is the name of the node that gets the changed bytes; empty if none does."""
        if not self.told:
            self.told = True
            write = replace(self.event.write, tensor=self._described())
            notice(replace(self.event, write=write, read=replace(self.event.read, node=reader)))


class Deliveries:
    """Where the gradients of one backward call go. After the first write that may matter, every node that runs is
    checked."""

    def __init__(self, call: Backward, way: Way) -> None:
        self.given = call.gradients
        self.spoils: list[Spoil] = []
        self._outputs, self._inputs, self._way = call.outputs, call.inputs, way
        self._hooks: list[RemovableHandle] = []
        self._nodes: list[Node] = []
        self._ran: set[Node] = set()
        """Nodes run since the first write."""
        self._notice: Notice = lambda event: None

    def expect(self, spoil: Spoil, notice: Notice, hooked: Container[Node]) -> None:
        """Record a gradient that is about to be written, and hook the nodes of the graph at the first one.

        The node of a Function calls `ran` and needs no hook. It gets one only if the program itself has `hooked` it:
        where there is a hook, no Function may add to the gradients that other nodes have passed on so far
        (`ctx.input_grad_buffers`, torch 2.14; tests/observe/detectors/test_gradient_buffers.py).
        """
        self._notice = notice
        if any(known.node is spoil.node and known.storage.cdata == spoil.storage.cdata for known in self.spoils):
            return
        self.spoils.append(spoil)
        if not self._nodes:
            self._nodes = list(graph.walk(graph.roots_of(self._outputs)))
            for node in self._nodes:
                gets, made = (self._way.entry(partial(hook, node)) for hook in (self._gets, self._made))
                self._hooks.append(private.hook(node.register_prehook, gets))
                if node.next_functions and not (isinstance(node, BackwardCFunction) and node not in hooked):
                    self._hooks.append(private.hook(node.register_hook, made))

    def _gets(self, node: Node, gradients: tuple[object, ...]) -> None:
        """A node is about to run, and gets these gradients."""
        self._ran.add(node)
        for spoil in self.spoils:
            if node is spoil.node:
                spoil.count(gradients)
            elif node not in spoil.heirs and spoil.settle() and spoil.is_on_any(gradients):
                spoil.tell(node.name(), self._notice)

    def _made(self, node: Node, made: tuple[object, ...], gradients: tuple[object, ...]) -> None:
        """A node has run: it was given `gradients` and returned `made`."""
        for spoil in self.spoils:
            if node is spoil.node and not spoil.counted:
                spoil.count((*gradients, *made))
            elif node is spoil.node and node not in self._ran and spoil.is_on_any(gradients):
                # The engine kept what the node was given for the program's own hooks on it.
                spoil.others -= 1
        self.returned(node, made)

    def ran(self, node: Node, gradients: tuple[object, ...], made: object) -> None:
        """The backward of a Function has returned `made`."""
        for spoil in self.spoils:
            if node is spoil.node:
                # The engine keeps what a node is given, for the node's hooks, until the node has run.
                spoil.count(gradients if node in self._ran else (), made if isinstance(made, tuple) else (made,))
        self.returned(node, made)

    def returned(self, node: Node, made: object) -> None:
        """Record the heirs of a node that has run: a node that it passes the written bytes on to gets them rightly."""
        following = [after for after, _ in node.next_functions]
        made = made if isinstance(made, (tuple, list)) else (made,)
        for spoil in self.spoils:
            spoil.settle()
            if node is spoil.node:
                spoil.heirs = set()
            if len(made) == len(following):
                spoil.heirs.update(after for after, each in zip(following, made, strict=True) if spoil.is_on(each))
            elif spoil.is_on_any(made):
                spoil.heirs.update(following)

    def stop(self) -> None:
        """Take the hooks off: the backward has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def finish(self, result: Any) -> None:
        """Check what the backward leaves: the gradients that it returns, those of leaves, and sums that it made before
        the write. `result` is what the engine returned."""
        results = [(_node_of(one, self._nodes), each) for one, each in zip(self._inputs, result or (), strict=False)]
        leaves = [(node, node.variable.grad) for node in self._nodes if hasattr(node, "variable")]
        nodes = [node for node, _ in results]
        for spoil in self.spoils:
            if spoil.told or not spoil.settle():
                continue
            # The engine puts aside what `grad` returns before any hook if the node runs, else after the node's hooks.
            own = spoil.heirs if spoil.counted else spoil.heirs | {spoil.node}
            wrong = [node for node, gradient in results if node not in own and spoil.is_on(gradient)]
            own = spoil.heirs | {spoil.node}
            wrong += [node for node, gradient in leaves if node not in own and spoil.is_on(gradient)]
            for node in wrong:
                spoil.tell(node.name() if node is not None else "", self._notice)
            if spoil.others > spoil.passed and not spoil.told:
                self._added_up(spoil, nodes)

    def _added_up(self, spoil: Spoil, results: list[Node | None]) -> None:
        """Report a sum that holds the changed bytes: nobody was given them directly, but an unfinished sum held them.

        The node of such a sum got its first part before the write and waited for another one.
        """
        for node in self._nodes:
            if node not in self._ran and node is not spoil.node:
                for following, _ in node.next_functions:
                    reached = following in self._ran or following in results
                    if following is not None and following is not spoil.node and reached:
                        spoil.tell(following.name(), self._notice)
                        return


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
