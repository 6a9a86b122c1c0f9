"""The ways of seeing: what each is called in a report, and how it is armed. To add one is to add a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from noclobber.observe import (
    again,
    aliases,
    assigning,
    backward_calls,
    checkpoints,
    foreign_hooks,
    functions,
    gradients,
    named,
    patches,
    replaced,
    saves,
    steps,
    swapping,
    undeclared,
    writes,
)
from noclobber.observe.ways import Way

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


class Seen(NamedTuple):
    """One way of seeing. `lasting` ones go on after a failure."""

    name: str
    arm: Callable[[Recorder, Way], None]
    lasting: bool = False


def _warnings(recorder: Recorder, way: Way) -> None:
    patches.on_warnings(way)


def _threads(recorder: Recorder, way: Way) -> None:
    patches.around_threads(way, recorder.enter, recorder.leave)


def _operators(recorder: Recorder, way: Way) -> None:
    patches.on_new_operators(way, writes.rescan)


def _listening(recorder: Recorder, way: Way) -> None:
    recorder.customs.watch(way, partial(backward_calls.listen, recorder))


def _saved_tensors(recorder: Recorder, way: Way) -> None:
    patches.on_saved_tensors(way, saves.originals)


def _untracked(recorder: Recorder, way: Way) -> None:
    recorder.untold.arm(way)


def _preserved_versions(recorder: Recorder, way: Way) -> None:
    patches.in_preserved_versions(way, recorder.versions_preserved)


def _transforms(recorder: Recorder, way: Way) -> None:
    patches.around_disabled_hooks(way, recorder.withdraw, recorder.put_back, lambda: recorder.thread.hooks)


ALWAYS: tuple[Seen, ...] = (
    Seen("lines that warnings blame", _warnings),
    Seen("threads that the program starts", _threads, lasting=True),
    Seen("operators that the program defines", _operators),
    Seen("writes of custom Functions in backward", _listening),
    Seen("writes into gradients", gradients.arm),
    Seen("saves under the program's own saved-tensor hooks", foreign_hooks.arm),
    Seen("optimizer steps", steps.arm),
    Seen("tensors whose dimensions have names", named.arm, lasting=True),
)
"""The ways of seeing that are armed whenever anybody listens, in this order; what each is called in a report."""
WATCHING: tuple[Seen, ...] = (
    Seen("saves that a backward with create_graph makes of its inputs", again.arm),
    Seen("what ctx.saved_tensors gives", _saved_tensors),
    Seen("assignments to `.data`", assigning.arm),
    Seen("tensors that are swapped", swapping.arm),
    Seen("writes that autograd does not know of", _untracked),
    Seen("tensors that a write replaced", replaced.arm),
    Seen("memory that other code holds (numpy, DLPack)", aliases.arm),
    Seen("checkpoint regions", checkpoints.arm),
    Seen("custom Functions", functions.arm),
    Seen("custom operators", undeclared.arm_operators),
    Seen("blocks that put version counters back", _preserved_versions),
    Seen("torch.func transforms", _transforms),
)
"""Those that are armed where saves are watched."""
