"""The ways of seeing: what each is called in a report, and how it is armed. To add one is to add a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from noclobber.observe.checkpoint import instrument
from noclobber.observe.core import backward_calls, interpose, named_tensors, optimizer_steps, save_hooks, write_kernels
from noclobber.observe.core.boundary import Way
from noclobber.observe.detectors import (
    custom_functions,
    data_assignment,
    double_backward,
    gradient_writes,
    replaced_tensors,
    swapped_tensors,
    undeclared_writes,
    user_save_hooks,
)
from noclobber.observe.foreign_memory import exported_saves

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


class Seen(NamedTuple):
    """One way of seeing. `lasting` ones go on after a failure."""

    name: str
    arm: Callable[[Recorder, Way], None]
    lasting: bool = False


def _warnings(recorder: Recorder, way: Way) -> None:
    interpose.on_warnings(way)


def _threads(recorder: Recorder, way: Way) -> None:
    interpose.around_threads(way, recorder.enter, recorder.leave)


def _operators(recorder: Recorder, way: Way) -> None:
    interpose.on_new_operators(way, write_kernels.rescan)


def _listening(recorder: Recorder, way: Way) -> None:
    recorder.customs.watch(way, partial(backward_calls.listen, recorder))


def _saved_tensors(recorder: Recorder, way: Way) -> None:
    interpose.on_saved_tensors(way, save_hooks.originals)


def _untracked(recorder: Recorder, way: Way) -> None:
    recorder.untold.arm(way)


def _preserved_versions(recorder: Recorder, way: Way) -> None:
    interpose.in_preserved_versions(way, recorder.versions_preserved)


def _transforms(recorder: Recorder, way: Way) -> None:
    interpose.around_disabled_hooks(way, recorder.withdraw, recorder.put_back, lambda: recorder.thread.hooks)


ALWAYS: tuple[Seen, ...] = (
    Seen("lines that warnings blame", _warnings),
    Seen("threads that the program starts", _threads, lasting=True),
    Seen("operators that the program defines", _operators),
    Seen("writes of custom Functions in backward", _listening),
    Seen("writes into gradients", gradient_writes.arm),
    Seen("saves under the program's own saved-tensor hooks", user_save_hooks.arm),
    Seen("optimizer steps", optimizer_steps.arm),
    Seen("tensors whose dimensions have names", named_tensors.arm, lasting=True),
)
"""The ways of seeing that are armed whenever anybody listens, in this order; what each is called in a report."""
WATCHING: tuple[Seen, ...] = (
    Seen("saves that a backward with create_graph makes of its inputs", double_backward.arm),
    Seen("what ctx.saved_tensors gives", _saved_tensors),
    Seen("assignments to `.data`", data_assignment.arm),
    Seen("tensors that are swapped", swapped_tensors.arm),
    Seen("writes that autograd does not know of", _untracked),
    Seen("tensors that a write replaced", replaced_tensors.arm),
    Seen("memory that other code holds (numpy, DLPack)", exported_saves.arm),
    Seen("checkpoint regions", instrument.arm),
    Seen("custom Functions", custom_functions.arm),
    Seen("custom operators", undeclared_writes.arm_operators),
    Seen("blocks that put version counters back", _preserved_versions),
    Seen("torch.func transforms", _transforms),
)
"""Those that are armed where saves are watched."""
