"""What becomes of a gradient that was overwritten in a backward: which part of the graph gets the changed bytes."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from noclobber.model.overlap import overlap
from noclobber.model.silent import GradientWrite
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.fingerprints import Digest, fingerprint, same, same_but_for_zeros
from noclobber.observe.core.records import Backward, geometry, tensor_on
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import graph, private

Notice = Callable[[GradientWrite], None]
HOLDS = torch.__version__ < "2.13"
"""Whether the engine itself holds what it gives to the backward of a Function, for as long as that runs."""
_given: dict[object, tuple[Any, ...]] = {}
"""What it holds so."""


def hold(args: tuple[Any, ...]) -> Callable[[], object]:
    """Note what the engine holds while the backward of a Function runs; what is returned is called at its end."""
    call = object()
    _given[call] = args
    return lambda: _given.pop(call, None)


def uses(tensor: torch.Tensor) -> int:
    """How many hold a tensor, but for the engine (tests/observe/detectors/test_gradient_writes.py)."""
    return private.use_count(tensor) - sum(one is tensor for given in list(_given.values()) for one in given)


def holders(tensor: torch.Tensor) -> int:
    """How many tensors share a storage, this one included."""
    # One more for the Python object through which the storage is asked.
    storage = private.storage(tensor)
    return private.storage_holders(storage._cdata) - 1


def _is_other(tensor: torch.Tensor, before: Digest) -> bool:
    """Whether a gradient holds other numbers than one of that fingerprint, of which a zero's sign is no part."""
    now = fingerprint(tensor)
    return now is not None and not same(now, before) and not same_but_for_zeros(tensor, before)


class Spoil:
    """A write into a gradient, before it is known whether anybody else gets it. Keeps no memory alive."""

    def __init__(self, tensor: torch.Tensor, given: torch.Tensor, node: Any, event: GradientWrite) -> None:
        self.node, self.event = node, event
        self.others = 0
        """How many others hold the gradient that the node was given, or show the same bytes."""
        self.passed = 0
        """How many of these are what a backward call under way was given, and holds to its end."""
        self._given = private.Weak(given)
        self._all = given.nbytes == private.storage(given).nbytes()
        self.counted = False
        """Whether the node ran, and `others` is known."""
        self.storage = private.storage_ref(tensor)
        self.told = False
        self.changed: bool | None = None
        """Whether the bytes are others; None until the code that wrote has returned."""
        self.heirs = {following for following, _ in node.next_functions}
        """The nodes that rightly get the changed bytes, as what wrote them handed them on."""
        self._geometry, self._region = geometry(tensor), clobbers.region(geometry(tensor))
        self._before = fingerprint(tensor)
        self._kept: Any = None

    def is_on(self, tensor: Any) -> bool:
        """Whether a tensor shows bytes that were written."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return False
        if private.storage(tensor)._cdata != self.storage.cdata:
            return False
        region = clobbers.region(geometry(tensor))
        return region is None or self._region is None or overlap(region, self._region)

    def is_on_any(self, tensors: Any) -> bool:
        """Whether one of them does."""
        return any(self.is_on(one) for one in tensors or ())

    def settle(self) -> bool:
        """Whether the bytes changed, and are still held by anybody."""
        if self.changed is None:
            with private.aside():
                shown = tensor_on(self.storage, self._geometry)
                self.changed = shown is not None and _is_other(shown, self._before)
        return self.changed

    def count(self, held: Any, made: Any = ()) -> None:
        """The code that wrote has returned; `held` is what the engine holds for the node itself. Done once."""
        given = self._given()
        if self.counted:
            return
        self.counted = True
        views = sum(1 for one in (*held, *made) if one is not given and self.is_on(one))
        if given is None:
            # Whoever shows other bytes of the same memory does not hold these.
            self.others = private.storage_holders(self.storage.cdata) - views if self._all else 0
            return
        whole = given if given._base is None else given._base
        sharing = holders(given) - 1 - (whole is not given)
        # Python's reference is one, and each view holds what it is a view of.
        self.others = uses(given) - 1 - sum(one is given for one in held) - sharing
        if whole is not given:
            self.others += uses(whole) - 2 - sharing
        if self._all:
            self.others = max(self.others, 0) + sharing - views

    def _fingerprint(self) -> Any:
        with private.aside():
            shown = tensor_on(self.storage, self._geometry)
            return None if shown is None else fingerprint(shown)

    def keep(self) -> bool:
        """Remember the bytes as this backward leaves them; False where nobody holds them any more."""
        self._kept, self.told = self._fingerprint(), False
        return bool(self.changed) and self._kept is not None

    def is_as_kept(self) -> bool:
        """Whether they are still the same: the program has not filled them anew."""
        return same(self._fingerprint(), self._kept)

    def tell(self, reader: str, notice: Notice) -> None:
        """Say it once."""
        if not self.told:
            self.told = True
            notice(replace(self.event, read=replace(self.event.read, node=reader)))


class Deliveries:
    """One backward call. From the first write that may matter on, every node that runs is looked at."""

    def __init__(self, call: Backward, way: Way) -> None:
        self.given = call.gradients
        self.spoils: list[Spoil] = []
        self._outputs, self._inputs, self._way = call.outputs, call.inputs, way
        self._hooks: list[Any] = []
        self._nodes: list[Any] = []
        self._ran: set[Any] = set()
        """Nodes run since the first write."""
        self._notice: Notice = lambda event: None

    def expect(self, spoil: Spoil, notice: Notice, hooked: Container[Any]) -> None:
        """A gradient is about to be written. A Function tells itself that it `ran`; only those that the program has
        `hooked` get a hook that says so: where there is one, no Function may add to what others have handed on so far
        (`ctx.input_grad_buffers`, torch 2.14; tests/observe/detectors/test_gradient_buffers.py)."""
        self._notice = notice
        if any(one.node is spoil.node and one.storage.cdata == spoil.storage.cdata for one in self.spoils):
            return
        self.spoils.append(spoil)
        if not self._nodes:
            self._nodes = list(graph.walk(graph.roots_of(self._outputs)))
            for node in self._nodes:
                gets, made = (self._way.entry(partial(one, node)) for one in (self._gets, self._made))
                self._hooks.append(private.hook(node.register_prehook, gets))
                if node.next_functions and not (isinstance(node, BackwardCFunction) and node not in hooked):
                    self._hooks.append(private.hook(node.register_hook, made))

    def _gets(self, node: Any, gradients: tuple[Any, ...]) -> None:
        self._ran.add(node)
        for spoil in self.spoils:
            if node is spoil.node:
                spoil.count(gradients)
            elif node not in spoil.heirs and spoil.settle() and spoil.is_on_any(gradients):
                spoil.tell(node.name(), self._notice)

    def _made(self, node: Any, made: Any, gradients: Any) -> None:
        for spoil in self.spoils:
            if node is spoil.node and not spoil.counted:
                spoil.count((*gradients, *made))
            elif node is spoil.node and node not in self._ran and spoil.is_on_any(gradients):
                # The program has hooks on this node, for which the engine kept what the node was given.
                spoil.others -= 1
        self.returned(node, made)

    def ran(self, node: Any, gradients: Any, made: Any) -> None:
        """The backward of a Function has returned."""
        for spoil in self.spoils:
            if node is spoil.node:
                # For the hooks of a node the engine keeps what the node is given until it has run.
                spoil.count(gradients if node in self._ran else (), made if isinstance(made, tuple) else (made,))
        self.returned(node, made)

    def returned(self, node: Any, made: Any) -> None:
        """A node has run: whoever it hands the written bytes on to gets them rightly."""
        following = [one for one, _ in node.next_functions]
        made = made if isinstance(made, (tuple, list)) else (made,)
        for spoil in self.spoils:
            spoil.settle()
            if node is spoil.node:
                spoil.heirs = set()
            if len(made) == len(following):
                spoil.heirs.update(one for one, each in zip(following, made, strict=True) if spoil.is_on(each))
            elif spoil.is_on_any(made):
                spoil.heirs.update(following)

    def stop(self) -> None:
        """The backward has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def finish(self, result: Any) -> None:
        """Look at what it leaves: the gradients it returns, those of leaves, and what was added up before it ran."""
        results = list(zip(map(_node_of, self._inputs), result or (), strict=False))
        leaves = [(node, node.variable.grad) for node in self._nodes if hasattr(node, "variable")]
        nodes = [node for node, _ in results]
        for spoil in self.spoils:
            if spoil.told or not spoil.settle():
                continue
            # What `grad` returns is put aside before any hook where the node runs, and after its own where it does not.
            own = spoil.heirs if spoil.counted else spoil.heirs | {spoil.node}
            wrong = [node for node, gradient in results if node not in own and spoil.is_on(gradient)]
            own = spoil.heirs | {spoil.node}
            wrong += [node for node, gradient in leaves if node not in own and spoil.is_on(gradient)]
            for node in wrong:
                spoil.tell(node.name() if node is not None else "", self._notice)
            if spoil.others > spoil.passed and not spoil.told:
                self._added_up(spoil, nodes)

    def _added_up(self, spoil: Spoil, results: list[Any]) -> None:
        """Nobody was handed the changed bytes themselves, yet somebody held them: a sum that waited for its other part.

        Its node is one that had got something before the write.
        """
        for node in self._nodes:
            if node not in self._ran and node is not spoil.node:
                for following, _ in node.next_functions:
                    if following is not spoil.node and (following in self._ran or following in results):
                        spoil.tell(following.name(), self._notice)
                        return


def _node_of(tensor: Any) -> Any:
    """The node that a gradient is asked for. A leaf that was given data made in inference mode has none, as nothing can
    lead to it (torch 2.10 to 2.15; tests/observe/core/test_inference.py)."""
    if not isinstance(tensor, torch.Tensor):
        return tensor.node
    if tensor.is_leaf and tensor.is_inference():
        return None
    return torch.autograd.graph.get_gradient_edge(tensor).node
