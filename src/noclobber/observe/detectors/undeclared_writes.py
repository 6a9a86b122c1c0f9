"""Undeclared writes: operators whose schema hides a write, and Functions that overwrite an input without mark_dirty.

A call may also overwrite what an earlier call returned, where both were given the same memory for their result.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.silent import Undeclared
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import OF_OPERATORS, End, ForwardCall
from noclobber.observe.core.context import Context, Look
from noclobber.observe.core.seen.handles import Handle, compare
from noclobber.observe.core.seen.records import Backward, Record, latest, record
from noclobber.observe.core.seen.sites import Place, caller, site_of
from noclobber.observe.core.seen.written import SHIFTS, Written
from noclobber.observe.core.writes import kernel_functions
from noclobber.observe.describe.clobbers import later_of
from noclobber.observe.torch_api.autograd import engine_state, graph
from noclobber.observe.torch_api.dispatch import modes, registry
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.digests import Digest, fingerprint
from noclobber.observe.witness.layout import span_of
from noclobber.observe.witness.witness import Change, Witness, change

KEPT = 256
"""How many inputs that Functions overwrote are remembered until a backward goes through them, and how many results."""
LARGEST = 1 << 22
"""Bytes. A result up to this size is copied while another call runs that may write it, to see what has changed."""
ON_DEVICE = 8
"""How many calls of one operator have their arguments on a device compared: each makes the program wait for it."""
_NO_GRADIENT = ("ZeroBackward", "FillBackward", "CopyBackwards")
"""Nodes that pass no gradient on to the tensor that their operator overwrote."""


Input = tuple[torch.Tensor, Any, int, "int | None", int, Digest]
"""A tensor in the graph that a Function is given, and its state before forward: the node that made it, which of its
outputs the tensor is, its storage, its version, and its fingerprint. On a device, only a write that is seen makes it
worth to wait for the bytes (`Writers._look`)."""
_Keys = set["int | None"]


class Beside(NamedTuple):
    """A tensor in the graph that an earlier call returned, on memory that this call is given as another tensor."""

    input: Input
    made: graph.Output
    old: torch.Tensor | None
    """A copy; None of a large one."""


@dataclass(slots=True, eq=False)
class Forward:
    """A forward under way. It equals no other: to compare two would compare their tensors."""

    inputs: list[Input]
    beside: list[Beside]
    keys: list[int]
    """The storages of all these."""
    looked: list[int]
    """The storages of those whose bytes are not known yet: they are read before the first write."""
    since: int
    """The newest moment before forward."""


class _Result(NamedTuple):
    """A tensor in the graph that a call returned on memory that it was given."""

    memory: Witness
    made: graph.Output


class _Overwritten(NamedTuple):
    """A tensor in the graph that a call overwrote."""

    made: graph.Output
    since: int
    """The number of the first node after the write: that node and later ones got the overwritten tensor."""
    by: str
    place: Place | None
    """Where the call was made."""
    last: Record | None
    """The last write to the tensor that was seen; None where the call itself has to stand for it."""
    version: int
    described: Callable[[], Tensor]
    beside: bool
    changed: torch.Tensor | None
    """A mask of the elements that changed; None where all may have."""

    def event(self) -> Undeclared:
        write = Write("", site_of(self.place), via="undeclared", tensor=self.described())
        if (last := self.last) is not None:
            op, site = last.written.op, site_of(last.place)
            write = replace(write, op=op, site=site, version_before=last.version, version_after=self.version)
        return Undeclared(registry.operator_behind(self.by), write, site_of(self.place), self.beside)


def arm(context: Context, way: Way) -> None:
    """Find inputs that custom Functions overwrite and do not declare."""
    writers = context.state(Writers)
    writers.arm(way)
    way.add(context.forwards.begins, way.entry(writers.forward_begins))
    context.calls.watch(way, writers.backward_begins, among=writers.overwritten)


class Writers:
    """The Functions whose forward is under way, and the tensors that calls overwrote and did not declare."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looking: Look = self._look
        self._ends: Callable[..., object] = self._forward_ends
        self._results: OrderedDict[int | None, deque[_Result]] = OrderedDict()
        """By storage, the one that got the newest last."""
        self.overwritten: deque[_Overwritten] = deque(maxlen=KEPT)
        """The tensors that calls overwrote, newest last."""

    def arm(self, way: Way) -> None:
        self._looking = way.entry(self._look)
        self._ends = way.entry(self._forward_ends, also_off=True)

    def forward_begins(self, call: ForwardCall) -> Callable[[bool], object] | None:
        """Note what a forward is given that begins, and return what to call at its end. None with gradients off.

        Its inputs are the arguments that have a node. Leaves are left out: a write to a leaf does not change which
        gradient belongs to it.
        """
        if not torch.is_grad_enabled():
            return None
        context, args = self._context, call.args
        contents, native = context.contents is not None, context.native
        known = native.given(args) if contents and native is not None else None
        inputs, keys, others = known or _given(args, contents)
        if call.function.__module__ == OF_OPERATORS:
            others = set()  # `Operators` looks at these
        beside = self.beside(others)
        if not inputs and not beside:
            return partial(self._ends, call, others, None)
        keys += _storages([one.input for one in beside]) if beside else ()
        looked = [] if known else [key for _, _, _, key, _, digest in inputs if key is not None and digest is None]
        forward = Forward(inputs, beside, keys, looked, latest[0])
        context.memory.read_again(keys, 1)
        context.thread.given.append(forward)
        if looked:
            context.attend(self._looking, looked)
        return partial(self._ends, call, others, forward)

    def _forward_ends(self, call: ForwardCall, others: _Keys, forward: Forward | None, returned: bool) -> None:
        try:
            if forward is not None:  # also after an error, which the program may catch
                self.ended(call.function.__name__, forward.inputs, forward.beside, call.dirty, forward.since)
            if returned:
                self.returned(call.result, others)
        finally:
            if forward is not None:
                self._context.thread.given.remove(forward)
                self._context.memory.read_again(forward.keys, -1)
                if forward.looked:
                    self._context.ignore(self._looking, forward.looked)

    def beside(self, others: _Keys) -> list[Beside]:
        """Return what earlier calls returned on the memory that a call is given, if it is in the graph and still there.

        A write that moves its version is left out later: PyTorch refuses to go on with it.
        """
        if not self._results or self._context.contents is None:
            return []
        found = []
        for key in others:
            if (results := self._results.get(key)) is None:
                continue
            for result in list(results):
                tensor = result.memory.tensor()
                if tensor is None or not result.memory.is_below(tensor):
                    results.remove(result)
                else:
                    small = tensor.numel() * tensor.itemsize <= LARGEST
                    with modes.aside():
                        old = tensor_state.detach(tensor).clone() if small else None
                    found.append(Beside(_input(tensor, None, True), result.made, old))
        return found

    def returned(self, result: object, others: _Keys) -> None:
        """Remember the tensors in the graph that a call returned on the memory that it was given."""
        if not others:
            return
        for tensor in tensor_state.tensors_in(result):
            key = storages.storage_key(tensor) if tensor.requires_grad else None
            if key is not None and key in others and (node := graph.maker_of(tensor)) is not None:
                of_key = self._results.pop(key, None) or deque(maxlen=KEPT)
                of_key.append(_Result(Witness(key, tensor), graph.output_ref(node, tensor.output_nr)))
                self._results[key] = of_key
                if len(self._results) > KEPT:
                    self._results.popitem(last=False)

    def _look(self, _written: Written, _tensor: torch.Tensor, key: int, _frame: FrameType) -> None:
        """Read the inputs of the forwards that this thread runs before they are written."""
        for forward in self._context.thread.given:
            for index, (tensor, node, output, of, version, digest) in enumerate(forward.inputs):
                if of == key and digest is None:
                    forward.inputs[index] = tensor, node, output, of, version, fingerprint(tensor)

    def ended(
        self,
        by: str,
        inputs: Sequence[Input],
        beside: Sequence[Beside],
        dirty: tuple[object, ...] = (),
        since: int | None = None,
    ) -> None:
        """Remember the tensors that a call overwrote without declaring them `dirty`. The call has returned; the writes
        to its inputs were remembered `since` it began."""
        changed: list[tuple[Input, Beside | None]] = [(one, None) for one in inputs if _has_changed(one)]
        if beside:
            changed += [(one.input, one) for one in beside if not _has_moved(one.input) and _has_changed(one.input)]
        place = caller() if changed else None
        for (tensor, maker, output, key, _, _), result in changed:
            if dirty and any(declared is tensor for declared in dirty):
                continue
            noted = [] if since is None else self._context.memory.writes_since(since + 1, key)
            writes = [one for one in noted if one.written.op not in ("data=", "swap_tensors")]
            if len(inputs) + len(beside) == 1 and writes and all(one.written.op in SHIFTS for one in writes):
                continue
            mask = None
            if result is not None and result.old is not None:
                with modes.aside():
                    mask = tensor_state.detach(tensor) != result.old
            last, version, node = writes[-1] if writes else None, int(tensor._version), engine_state.next_node()
            described, is_beside = later_of(tensor), result is not None
            made = graph.output_ref(maker, output) if result is None else result.made
            self.overwritten.append(_Overwritten(made, node, by, place, last, version, described, is_beside, mask))

    def backward_begins(self, call: Backward) -> End | None:
        """Return what reports, at the end of a call, the gradients that skip an undeclared write."""
        return self._context.bus.at_end(self._passed_by(call.outputs, call.inputs))

    def _passed_by(self, outputs: Iterable[Any], inputs: Sequence[Any]) -> list[Undeclared]:
        """Return the writes that a gradient will skip: it flows from a node that used the overwritten tensor straight
        to the node that made the tensor. Of two Functions that ran in each other, the inner one made the write."""
        found: dict[int, Undeclared] = {}
        by_maker: dict[int, list[_Overwritten]] = {}
        for one in self.overwritten.copy():
            by_maker.setdefault(one.made.number, []).append(one)
        for user in graph.walk(graph.roots_of(outputs)):
            for maker, output in user.next_functions:
                if maker is None or (remembered := by_maker.get(maker._sequence_nr())) is None:
                    continue
                if user.name().startswith(_NO_GRADIENT) or not graph.leads_to(maker, inputs):
                    continue
                for overwritten in remembered:
                    after = graph.is_after(user._sequence_nr(), maker._sequence_nr(), overwritten.since)
                    if after and overwritten.made.is_of(maker, output) and _sees(user, overwritten.changed):
                        found.setdefault(id(overwritten.last or overwritten), overwritten.event())
        return list(found.values())


def _input(tensor: torch.Tensor, node: Node | None, contents: bool) -> Input:
    digest = fingerprint(tensor) if contents and tensor.is_cpu else None
    return tensor, node, tensor.output_nr, storages.storage_key(tensor), tensor._version, digest


def _has_moved(one: Input) -> bool:
    tensor, _, _, _, version, _ = one
    return tensor._version != version


def _has_changed(one: Input) -> bool:
    tensor, _, _, _, _, digest = one
    now = None if digest is None else fingerprint(tensor)
    if type(digest) is int:
        return now != digest
    return change(digest, now, moved=_has_moved(one), waits=True) is not Change.NO


def _given(args: Iterable[object], contents: bool) -> tuple[list[Input], list[int], _Keys]:
    """Return the tensors in the graph that a call is given, their storages, and those of the tensors outside of it."""
    inputs = [
        _input(one, node, contents)
        for one in args
        if isinstance(one, torch.Tensor) and one.requires_grad and (node := graph.maker_of(one)) is not None
    ]
    return inputs, _storages(inputs), _outside(args)


def _storages(inputs: Iterable[Input]) -> list[int]:
    return [key for _, _, _, key, _, _ in inputs if key is not None]


def _outside(args: Iterable[object]) -> _Keys:
    """Return the storages of the arguments that are not in the graph: what a call is given to write its result to."""
    return {storages.storage_key(one) for one in args if isinstance(one, torch.Tensor) and not one.requires_grad}


def _sees(user: Any, changed: torch.Tensor | None) -> bool:
    """Return False if a node takes a part of a tensor in which nothing has changed."""
    if changed is None:
        return True
    with modes.aside():
        if user.name().startswith("SliceBackward"):
            part = slice(_signed(user._saved_start), _signed(user._saved_end), user._saved_step)
            changed = changed[(slice(None),) * user._saved_dim + (part,)]
        elif user.name().startswith("SelectBackward"):
            changed = changed.select(user._saved_dim, _signed(user._saved_index))
        return bool(changed.any())


def _signed(number: int) -> int:
    """Return a saved index as it was given: nodes show negative ones as unsigned numbers of 64 bits (torch 2.13)."""
    return number - (1 << 64) if number >= 1 << 63 else number


# -- operators ---------------------------------------------------------------------------------------------------------


def arm_operators(context: Context, way: Way) -> None:
    """Compare live saves around each call of an operator that is not PyTorch's own, until the recorder disarms."""
    kernel_functions.compare(way.entry(Operators(context, way).before))
    way.at_end(lambda: kernel_functions.compare(None))


class Operators:
    """Compares the live saves on the arguments of an operator before and after each call that declares no write."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._waited: dict[str, int] = {}

    def before(self, op: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Callable[[object], object] | None:
        """Called before an operator runs. Returns what to call after it; None where there is nothing to compare."""
        context, live, writers = self._context, self._context.live, self._context.state(Writers)
        if context.contents is None or not context.thread.watched:
            return None
        values = [*args, *kwargs.values()]
        results = writers.beside(_outside(values)) if torch.is_grad_enabled() else []
        given = {
            (key, span_of(tensor)): tensor
            for tensor in tensor_state.tensors_in(values)
            if (key := storages.storage_key(tensor)) is not None
        }
        for key, span in given:
            compare(context.contents, live.at(key, span))
        tensors = {where: tensor for where, tensor in given.items() if self._may_wait(op, tensor)}
        was = {
            id(handle): (handle, fingerprint(handle.alias), int(handle.alias._version))
            for key, span in tensors
            for handle in live.at(key, span)
        }

        def after(result: object) -> None:
            if context.thread.watched and torch.is_grad_enabled():
                writers.ended(op, (), results)
                writers.returned(result, _outside(values))
            for (key, span), tensor in tensors.items():
                for handle in live.at(key, span):
                    _, digest, version = was.get(id(handle)) or (handle, handle.digest, int(handle.alias._version))
                    if version != handle.alias._version:
                        continue
                    if change(digest, fingerprint(handle.alias), waits=True) is Change.BYTES:
                        self._note(op, handle, tensor, key)

        return self._way.entry(after) if tensors else None

    def _may_wait(self, op: str, tensor: torch.Tensor) -> bool:
        """Return True if a tensor may be compared: it is on the CPU, or the operator has not had ON_DEVICE yet."""
        if tensor.device.type == "cpu":
            return True
        self._waited[op] = self._waited.get(op, 0) + 1
        return self._waited[op] <= ON_DEVICE

    def _note(self, op: str, handle: Handle, tensor: torch.Tensor, key: int) -> None:
        context = self._context
        written = Written(op, (), uncounted=True, undeclared=True)
        noted = record(written, tensor, key, caller(), context.thread)
        handle.suspected().writes.append((noted, int(handle.alias._version)))
