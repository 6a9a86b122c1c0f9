"""Records of a write that was seen, and of a backward call under way. They are small: one is made on every write."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import torch

from noclobber.model.seen.events import Holder, Optimizer, Step
from noclobber.model.source import Site
from noclobber.observe.core.seen.sites import Place, place_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.tensors import tensor_state
from noclobber.observe.witness.layout import Geometry, geometry

latest = array("q", [0])
"""The newest moment, as the only item. A save reuses it, which costs less; later writes get a higher number. The native
part counts on in this memory."""
taken = [0]
"""How many saves and writes Python has taken, as the only item (arming/own_cost.py)."""
_numbers: Callable[[], int] = count(1).__next__


def _counted() -> int:
    latest[0] = number = _numbers()
    return number


following: Callable[[], int] = _counted
"""What gives the numbers; the native part sets this."""


@dataclass(slots=True, eq=False)
class Looked:
    """Who holds what one line writes, in which modules, by which calls: what `describe/holders.py` has seen."""

    code: CodeType
    """Kept, so that its id stays."""
    times: int = 0
    holders: tuple[Holder, ...] | None = ()
    apart: tuple[Holder, ...] = ()
    """Variables that held tensors of other memory at each of these times."""
    is_widest: bool = True
    """Whether no tensor that the variables of the line led to had a wider element type, at each of these times."""
    modules: tuple[str, ...] = ()
    calls: tuple[Site, ...] = ()


looked_at: dict[tuple[int, int], Looked] = {}
"""By the id of the code and the instruction that writes."""


def seen_at(place: Place | None) -> Looked | None:
    """Return what is known of a line that writes; None if it was not seen to write."""
    known = looked_at.get((id(place[0]), place[1])) if place is not None else None
    return known if known is not None and known.times else None


second_runs: deque[tuple[int, int]] = deque(maxlen=1024)
"""The latest second runs of checkpointed regions: the moments before and after each."""


def in_second_run(record: Record) -> bool:
    """Return True if a checkpointed region made a write while backward ran it again."""
    return bool(record.in_backward) and any(begin < record.moment < end for begin, end in second_runs)


def moment() -> int:
    """Return a number higher than all before it, in all threads. The numbers of nodes only count within a thread."""
    return following()


class Record(NamedTuple):
    """One write as it was seen. It becomes a Write of the model only when a finding is made."""

    written: Written
    place: Place | None
    key: int
    version: int | None
    geometry: Geometry | None
    step: Step | None
    in_backward: int
    """How many backward calls are under way in the thread, one inside the other."""
    node: int
    """The sequence number of the thread's next autograd node."""
    moment: int
    """When the record was made."""
    in_graph: bool
    """Whether the tensor requires a gradient when the write begins."""
    untracked: bool = False
    """Whether autograd does not see the write although the tensor is in the graph."""


class Stepped(NamedTuple):
    """The writes of an optimizer's step, by parameter. They become Records only when a finding is looked for."""

    written: Written
    place: Place | None
    keys: tuple[int | None, ...]
    versions: list[int | None]
    where: tuple[Geometry, ...]
    step: Step
    in_backward: int
    node: int
    moment: int

    def records(self) -> list[Record]:
        """Return a Record for each parameter that has a storage."""
        return [
            Record(
                self.written, self.place, key, version, one, self.step, self.in_backward, self.node, self.moment, True
            )
            for key, version, one in zip(self.keys, self.versions, self.where, strict=True)
            if key is not None
        ]


@dataclass(slots=True, eq=False)
class Backward:
    """A backward call under way; compared by identity.

    `call` is "backward" or "grad", or "access" for a save that is read outside of a backward call.
    """

    place: Place | None
    outputs: Any
    call: str
    gradients: Any = ()
    """The gradients that the program passes in."""
    inputs: Any = ()
    """The tensors whose gradients are asked for; empty for all leaves."""
    create_graph: bool = False
    is_checked: bool = False
    """Whether noclobber has seen what the graph saves."""
    over: bool = False
    """Whether the call has ended."""
    quiet: bool = False
    """Whether the write log rests during the call."""
    hooks: hook_stack.Pair | None = None
    """Noclobber's hooks of the thread that calls, when the call begins."""
    resting: bool = False
    """Whether these hooks are off the stack while no Python runs in the call."""
    deliveries: Any = None
    """What is known of gradients that are overwritten during the call (gradient_writes.py); None if nothing."""
    explained: list[Site | None] = field(default_factory=list)
    """The lines of the writes that were reported during the call."""
    optimizers: tuple[Optimizer, ...] | None = None
    """The program's optimizers, which the first report of a step looks for (describe/optimizers.py)."""
    constants: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()
    """As of a `Clobber`, which that report looks for as well."""
    calls: tuple[Site, ...] = ()
    """The calls that lead to it, as of a `Write`, which that report looks for as well: the next ones may come when the
    frame is gone."""
    later: list[Any] = field(default_factory=list)
    """Reads of bytes on a device, which are compared at the end of the call (describe/clobbers.Later)."""
    ends: list[Any] = field(default_factory=list)
    """What the watchers want to be called at the end of the call."""
    with_python: bool = False
    """Whether the watchers of Python code in a call were told."""
    outer: Backward | None = None
    """The call during which this call is made; None if there is none."""
    node: int = 0
    """The sequence number of the calling thread's next autograd node when the call begins."""
    frame: FrameType | None = None
    """The calling frame while the call is under way. Threads of the engine have no frames of the program."""


def read(
    place: Place | None,
    frame: FrameType,
    outputs: Iterable[object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Backward:
    """Return the backward call that the engine's arguments ask for. `frame` calls the engine.

    `torch.autograd.backward` and `grad` pass (outputs, gradients, retain_graph, create_graph, inputs) by position and
    `accumulate_grad` by name (torch 2.13; self_tests.py tests it).
    """
    gradients, _, create_graph, inputs = (*args, *(None,) * 4)[:4]
    call = "backward" if kwargs.get("accumulate_grad") else "grad"
    return Backward(place, outputs, call, gradients or (), inputs or (), bool(create_graph), frame=frame)


def here() -> Backward | None:
    """Return the backward call that this thread runs or works for; None outside of one."""
    call: Backward | None = engine_state.backward_call()
    return None if call is None or call.over else call


def reading() -> Backward:
    """Return the backward call under way; outside of one, a Backward for the line that reads the save."""
    return here() or Backward(place_of(sys._getframe(1)), (), "access")


class Counting(Protocol):
    """The part of a thread's state that a record needs."""

    entered: bool
    backwards: list[Backward]
    step: Step | None
    stepped: frozenset[int | None] | None


def _elsewhere() -> tuple[int, int]:
    """Return how many backward calls are under way, and the next node's number, for a thread that was not entered.

    Such a thread works for a call of another thread and writes to the graphs of that thread. So the node's number is
    that of the calling thread when it made the outermost call.
    """
    call: Backward | None = engine_state.backward_call()
    if call is None or call.over:
        return 0, engine_state.next_node()
    calls = 1
    while call.outer is not None:
        call, calls = call.outer, calls + 1
    return calls, call.node


def record(
    written: Written,
    tensor: torch.Tensor,
    key: int,
    place: Place | None,
    thread: Counting,
    untracked: bool = False,
) -> Record:
    """Return the record of a write that is about to happen in a thread."""
    step = thread.step
    if step is not None and thread.stepped is not None and key not in thread.stepped:
        step = None
    if thread.entered:
        under_way, number = len(thread.backwards), engine_state.next_node()
    else:
        under_way, number = _elsewhere()
    version, where, in_graph = tensor_state.version_of(tensor), geometry(tensor), tensor.requires_grad
    return Record(written, place, key, version, where, step, under_way, number, following(), in_graph, untracked)
