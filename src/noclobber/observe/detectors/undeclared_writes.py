"""Writes that nobody declared: operators whose schema lies, and Functions that overwrite an input without saying so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from noclobber.model.events import Write
from noclobber.model.silent import Undeclared
from noclobber.observe.core import custom_op_kernels
from noclobber.observe.core.backward_calls import End
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.custom_forwards import ForwardCall
from noclobber.observe.core.fingerprints import Digest, OnDevice, differ, fingerprint
from noclobber.observe.core.records import Backward, Record, record
from noclobber.observe.core.save_hooks import Handle, Suspect
from noclobber.observe.core.sites import Place, caller, place_of, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import graph, private

KEPT = 256
"""Inputs overwritten by Functions that are remembered until a backward goes through them."""
ON_DEVICE = 8
"""Calls of one operator whose arguments on a device are compared: each makes the program wait for the device."""
_NO_GRADIENT = ("ZeroBackward", "FillBackward", "CopyBackwards")
"""What hands no gradient on to the tensor that it overwrites."""
_SHIFTS = ("aten::add_", "aten::sub_")
"""Their derivative by what they overwrite is one: the gradient that passes the write by is right."""


class Input:
    """A tensor in the graph that a Function is given: as it is before forward, and who writes it."""

    __slots__ = ("digest", "key", "name", "node", "output", "tensor", "version", "writes")

    def __init__(self, tensor: torch.Tensor, node: Any, digest: Digest) -> None:
        self.tensor, self.digest = tensor, digest
        self.node, self.name, self.output = node._sequence_nr(), node.name(), tensor.output_nr
        self.version, self.key = tensor._version, private.storage_key(tensor)
        self.writes: list[Record] = []


class _Overwritten(NamedTuple):
    """An input that was overwritten, by the number, name and output of the node that made it."""

    node: tuple[int, str, int]
    since: int
    """The number of the next node: what has that or a later one got the overwritten tensor."""
    event: Undeclared


def arm(context: Context, way: Way) -> None:
    """Look at what custom Functions write and do not declare."""
    writers = Writers(context, way)

    def begin(call: ForwardCall, args: tuple[Any, ...]) -> Callable[[bool], None] | None:
        inputs = writers.began(args)

        def ended(returned: bool) -> None:
            writers.left(inputs)
            if returned:
                writers.ended(inputs, call.dirty, call.function, call.applied)

        return ended if inputs else None

    context.forwards.watch(way, begin)
    context.calls.watch(way, writers.backward_begins)


class Writers:
    """The Functions under way, and the inputs that they overwrote without `mark_dirty`."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._looks: dict[int, Callable[..., None]] = {}
        self._overwritten: deque[_Overwritten] = deque(maxlen=KEPT)

    def began(self, args: tuple[Any, ...]) -> list[Input]:
        """A forward begins: its inputs in the graph. Leaves are left out: what overwrites them changes no history."""
        if not torch.is_grad_enabled():
            return []
        contents, inputs = self._context.contents is not None, []
        for tensor in args:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and (node := _node(tensor)) is not None:
                inputs.append(Input(tensor, node, fingerprint(tensor) if contents else None))
        if inputs:
            self._context.thread.given.append(inputs)
            look = self._looks[id(inputs)] = self._way.entry(partial(self._look, inputs))
            self._context.attend(look)
        return inputs

    def left(self, inputs: list[Input]) -> None:
        """That forward has returned or raised."""
        self._context.thread.given.remove(inputs)
        self._context.ignore(self._looks.pop(id(inputs)))

    def _look(self, inputs: list[Input], written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        context = self._context
        for one in inputs:
            if one.key == key and any(each is inputs for each in context.thread.given):
                if one.digest is None:
                    one.digest = fingerprint(one.tensor)
                noted = record(written, tensor, key, place_of(frame), context.thread.step, context.thread)
                one.writes.append(noted)

    def ended(self, inputs: list[Input], dirty: tuple[Any, ...], function: type, place: Place | None) -> None:
        """That forward has returned: keep what it overwrote and did not declare."""
        for one in inputs:
            if any(tensor is one.tensor for tensor in dirty) or not _changed(one):
                continue
            if len(inputs) == 1 and one.writes and all(noted.written.op in _SHIFTS for noted in one.writes):
                continue
            event = Undeclared(function.__name__, _write(one, place), site_of(place))
            self._overwritten.append(_Overwritten((one.node, one.name, one.output), private.next_node(), event))

    def backward_begins(self, call: Backward) -> End | None:
        """Look for gradients that will pass an undeclared write by; tell of them once the call has ended well."""
        events = self._passed_by(call.outputs, call.inputs) if self._overwritten else []

        def ended(result: Any, error: BaseException | None) -> None:
            for event in events if error is None else ():
                self._context.bus.notice(event)

        return ended if events else None

    def _passed_by(self, outputs: Any, inputs: Any) -> list[Undeclared]:
        """The writes past which a gradient will flow: of a node that used the overwritten tensor, to what made it."""
        remembered = list(self._overwritten)
        known = {(one.node, one.since): one for one in remembered}
        made = {one.node for one in remembered}
        found: dict[int, Undeclared] = {}
        for user in graph.walk(graph.roots_of(outputs)):
            for maker, output in user.next_functions:
                node = (maker._sequence_nr(), maker.name(), output) if maker is not None else None
                if node not in made or user.name().startswith(_NO_GRADIENT) or not _leads_to(maker, inputs):
                    continue
                for (overwritten, since), one in known.items():
                    if overwritten == node and since <= user._sequence_nr():
                        found[id(one)] = one.event
        return list(found.values())


def _changed(one: Input) -> bool:
    moved = one.tensor._version != one.version
    if one.digest is None or (isinstance(one.digest, OnDevice) and not one.writes):
        return moved
    return differ(one.digest, fingerprint(one.tensor))


def _write(one: Input, place: Place | None) -> Write:
    described = clobbers.tensor_of(one.tensor, one.key)
    if not one.writes:
        return Write("", site_of(place), via="undeclared", tensor=described)
    last, after = one.writes[-1], int(one.tensor._version)
    before = last.version
    return Write(
        last.written.op,
        site_of(last.place),
        via="undeclared",
        version_before=before,
        version_after=after,
        tensor=described,
    )


def _node(tensor: torch.Tensor) -> Any:
    """What made an input of a Function. Asking is what PyTorch is about to do itself; it refuses for one of several
    views whose base was written, and will say so."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _leads_to(node: Any, inputs: Any) -> bool:
    """Whether a gradient that reaches a node goes on to what is asked for; no `inputs` means all leaves."""
    if not inputs:
        return True
    wanted = {one.node if not isinstance(one, torch.Tensor) else one.grad_fn or one for one in inputs}
    return any(each in wanted or getattr(each, "variable", None) in wanted for each in graph.walk([node]))


# -- operators ---------------------------------------------------------------------------------------------------------


def arm_operators(context: Context, way: Way) -> None:
    """Compare around the calls of operators that are not PyTorch's own, until the recorder disarms."""
    custom_op_kernels.compare(way.entry(Operators(context, way).before))
    way.at_end(lambda: custom_op_kernels.compare(None))


class Operators:
    """Compares, around each call of an operator that says it writes nothing, the live saves on its arguments."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._waited: dict[str, int] = {}

    def before(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object] | None:
        """Called before an operator runs; what is returned is called once it has."""
        context = self._context
        if context.contents is None or not context.thread.watched:
            return None
        return self._looking(op, args, kwargs)

    def _looking(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object] | None:
        live = self._context.live
        tensors = {
            key: one
            for value in (*args, *kwargs.values())
            for one in _tensors(value)
            if (key := private.storage_key(one)) is not None and self._may_wait(op, one)
        }
        was = {
            id(handle): (handle, fingerprint(handle.alias), int(handle.alias._version))
            for key in tensors
            for handle in live.at(key)
        }

        def after() -> None:
            for key, tensor in tensors.items():
                for handle in live.at(key):
                    _, digest, version = was.get(id(handle)) or (handle, handle.digest, int(handle.alias._version))
                    if version == handle.alias._version and differ(digest, fingerprint(handle.alias)):
                        self._note(op, handle, tensor, key)

        return self._way.entry(after) if tensors else None

    def _may_wait(self, op: str, tensor: torch.Tensor) -> bool:
        if tensor.device.type == "cpu":
            return True
        self._waited[op] = self._waited.get(op, 0) + 1
        return self._waited[op] <= ON_DEVICE

    def _note(self, op: str, handle: Handle, tensor: torch.Tensor, key: int) -> None:
        context, marked = self._context, handle.version
        if not isinstance(marked, Suspect):
            marked = handle.version = Suspect(marked)
        written = Written(op, (), uncounted=True, undeclared=True)
        noted = record(written, tensor, key, caller(), context.thread.step, context.thread)
        marked.writes.append((noted, int(handle.alias._version)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (one for one in value if isinstance(one, torch.Tensor))
