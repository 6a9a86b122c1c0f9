"""Reentrant checkpointed regions: what a second run returns is compared with what forward returned.

Such a region saves nothing in forward, so there are no saves to compare. The region is kept on the `ctx` of PyTorch's
Function.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import Any, Protocol
from weakref import ref

import torch
import torch.utils.checkpoint

from noclobber.model.reports.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import reads
from noclobber.observe.core.seen.records import moment
from noclobber.observe.core.seen.sites import place_of
from noclobber.observe.describe import clobbers
from noclobber.observe.takers.checkpoint import forward_bytes, taint
from noclobber.observe.takers.checkpoint.regions import CheckpointRegion, RegionSave
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.frames import passed_over


class _Ctx(forward_bytes.SavesTensors, Protocol):
    """The ctx of PyTorch's Function for a reentrant region, with what noclobber keeps on it."""

    needs_input_grad: tuple[bool, ...]
    inputs: list[object]
    """The region's arguments, with None in place of each tensor."""
    preserve_rng_state: bool
    run_function: Callable[..., object]
    noclobber_region: tuple[CheckpointRegion, list[RegionSave], taint.Before | None, Callable[..., object]]


def arm(context: Context, way: Way) -> None:
    """Watch these regions until the recorder disarms."""
    function: type[torch.autograd.Function] = torch.utils.checkpoint.CheckpointFunction
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def watched_forward(
        ctx: _Ctx, run_function: Callable[..., object], preserve_rng_state: bool, *args: object
    ) -> object:
        under_way, caller = [True], sys._getframe(1)
        begun = way.guarded(began, ctx, run_function, args, under_way, caller)
        try:
            outputs = forward(ctx, run_function, preserve_rng_state, *args)
        finally:
            under_way.clear()
        if begun is not None:
            way.guarded(ended, ctx, run_function, outputs, *begun)
        return outputs

    def began(
        ctx: _Ctx, run_function: object, args: tuple[object, ...], under_way: list[bool], caller: FrameType
    ) -> _Begun | None:
        if not context.thread.watched:
            return None
        read = reads.read_by(run_function, args)
        region = CheckpointRegion(context, way, place_of(caller), read)
        before = taint.Before(read) if context.contents is not None else None
        if context.keeping and any(ctx.needs_input_grad):
            region.past = forward_bytes.Past(
                context, way, region.place, lambda: bool(under_way), read.tensors, args, reentrant=True
            )
        return region, before

    def ended(
        ctx: _Ctx,
        run_function: Callable[..., object],
        outputs: object,
        region: CheckpointRegion,
        before: taint.Before | None,
    ) -> None:
        region.end = moment()
        packed = [region.output(tensor) for tensor in _tensors(outputs)]
        ctx.noclobber_region = (region, packed, before, run_function)
        if region.past is not None:
            region.past.forward_ended()
            ctx.run_function = functools.partial(_run_anew, region, packed, before, ref(ctx), run_function, None)

    @functools.wraps(backward)
    def watched_backward(ctx: _Ctx, *gradients: object) -> object:
        watched: Any = getattr(ctx, "noclobber_region", (None, [], None, None))
        region, packed, before, run = watched
        if region is None or region.past is not None or not context.bus.listeners:
            return backward(ctx, *gradients)
        ctx.run_function = functools.partial(_run_anew, region, packed, before, lambda: ctx, run, context.bus.told)
        try:
            return backward(ctx, *gradients)
        finally:
            ctx.run_function = run

    way.patches.put(function, "forward", staticmethod(watched_forward))
    way.patches.put(function, "backward", staticmethod(watched_backward))


_Begun = tuple[CheckpointRegion, "taint.Before | None"]


@passed_over
def _run_anew(
    region: CheckpointRegion,
    packed: list[RegionSave],
    before: taint.Before | None,
    node: Callable[[], Any],
    run: Callable[..., object],
    told: int | None,
    *args: object,
) -> object:
    """Run a reentrant region again. Where bytes are preserved, this happens even after the preserving block has ended.

    `told` is how many clobbers had been reported when its backward began; None if clobbers need not be counted. Raises
    ClobberError if the region drifts although its bytes must be preserved.

    PyTorch calls this function. Any other error that leaves it must come from `run`.
    """
    guarded, stack = region.way.guarded, ExitStack()
    leave = region.way.entry(stack.close, also_off=True)
    try:
        followed = guarded(lambda: _followed(region, before, node(), run, told, args, stack))
        if followed is None:
            leave()
            region.must_read_as_it_is()
        try:
            outputs = run(*args)
        except Exception as error:
            guarded(region.failed, error)
            raise
        if followed is not None and not region.told:
            guarded(lambda: _compare_outputs(region, packed, _tensors(outputs), *followed))
        if region.must_raise():
            raise ClobberError(clobbers.CHANGED)
        return outputs
    finally:
        leave()


_Followed = tuple["taint.Derived | None", "taint.Derived | None"]
"""What a region computes while it runs again: from changed memory, and from tensors whose place in the graph changed.
None where nothing of that kind is followed."""


def _followed(
    region: CheckpointRegion,
    before: taint.Before | None,
    ctx: _Ctx,
    run: object,
    told: int | None,
    args: tuple[object, ...],
    following: ExitStack,
) -> _Followed:
    """Enter on `following` what must be in force while a region runs again, and return what follows its operators."""
    if region.past is not None:
        region.past.enter(following, ctx, args)
    if told is not None:
        region.told |= region.context.bus.told > told
    given = [argument if kept is None else kept for argument, kept in zip(args, ctx.inputs, strict=True)]
    read = reads.read_by(run, given)
    region.begins_again(following, read)
    now = before.now(read) if before is not None and not region.told else None
    standing_in = region.past.standing_in() if region.past is not None else nullcontext()
    changed, moved = None, None
    if now is not None and now.calls_for_a_look(region.statistics()):
        changed = following.enter_context(taint.Derived(now, region.way, ctx.preserve_rng_state))
    if now is not None and now.moved and (region.past is not None or region.was_written(set(now.moved))):
        moved = following.enter_context(taint.Derived(now, region.way, True, moved=True))
    following.enter_context(standing_in)
    return changed, moved


def _tensors(outputs: object) -> list[torch.Tensor]:
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [output for output in several if isinstance(output, torch.Tensor)]


def _compare_outputs(
    region: CheckpointRegion,
    packed: list[RegionSave],
    outputs: list[torch.Tensor],
    derived: taint.Derived | None,
    moved: taint.Derived | None,
) -> None:
    """Report the first output of a region that is wrong in the second run.

    An output is wrong if it differs from forward, unless backward certainly reads nothing that has changed. It is also
    wrong if a tensor that it was computed from was cut off the graph or joined to it, because gradients then flow
    elsewhere. If no output is wrong, report a save of the region that shows changed bytes; or, where zeros have hidden
    a change from all outputs, the first output that was computed from it.
    """
    for before, tensor in zip(packed, outputs, strict=False):
        if moved is not None and moved.explains(tensor):
            wrong = True
        elif region.returns_other(before, tensor):
            wrong = derived is None or not derived.explains(tensor) or derived.reaches(outputs)
        elif derived is None:
            wrong = False
        elif before.digest is None and not tensor.is_cpu:
            # The output's own bytes were not recorded. The memory that it was computed from was.
            wrong = derived.explains(tensor) and derived.reaches(outputs)
        else:
            # Where bytes are preserved nothing should have changed. If something has, an equal output is mere luck.
            doubtful = derived.explains(tensor) if region.past is not None else derived.hides(tensor)
            wrong = doubtful and derived.reaches(outputs)
        if wrong:
            region.tell(engine_state.current_node(), "output", before, tensor, reentrant=True)
            return
    if derived is None:
        return
    if (first := derived.first_changed(outputs)) is not None:
        node, handle = first
        was = RegionSave(handle.alias, handle.place, handle.digest)
        region.tell(node, clobbers.field_of(handle, node), was, handle.alias, reentrant=True)
    elif derived.wipes_out(outputs):
        for before, tensor in zip(packed, outputs, strict=False):
            if derived.explains(tensor):
                region.tell(engine_state.current_node(), "output", before, tensor, reentrant=True)
                return
