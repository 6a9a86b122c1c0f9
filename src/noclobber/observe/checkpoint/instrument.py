"""torch.utils.checkpoint, reentrant or not: what a region computes anew for backward is compared with forward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.utils.checkpoint

from noclobber.model.error import ClobberError
from noclobber.observe.checkpoint import arguments, captured_tensors, reruns, taint
from noclobber.observe.checkpoint.regions import CheckpointRegion, RegionSave
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.fingerprints import OnDevice
from noclobber.observe.core.records import here, moment
from noclobber.observe.core.save_hooks import Suspect
from noclobber.observe.core.sites import place_of
from noclobber.observe.describe import clobbers
from noclobber.observe.detectors import user_save_hooks
from noclobber.observe.torch_api import graph, private, self_tests
from noclobber.observe.torch_api.frames import passed_over


def arm(context: Context, way: Way) -> None:
    """See every region until the recorder disarms.

    Programs import `checkpoint` by name before; it looks up what is replaced here when it is called (torch 2.13).
    """
    native = private.lookup("utils.checkpoint._checkpoint_hook")
    private.lookup("utils.checkpoint._Holder")
    self_tests.of_checkpoints()

    def began(hooks: Any, frame: Any, caller: FrameType) -> None:
        if context.thread.watched:
            function, args, kwargs = (caller.f_locals.get(name) for name in ("fn", "args", "kwargs"))
            region = _region(context, way, caller, function, args, kwargs)
            if context.keeping:
                _preserve(region, frame, function, args, kwargs)
            _watch(region, hooks, frame)

    def _checkpoint_hook(frame: Any) -> Any:
        hooks, caller = native(frame), sys._getframe(1)
        way.guarded(lambda: began(hooks, frame, caller))
        return hooks

    module: Any = torch.utils.checkpoint
    way.patches.put(module, "_checkpoint_hook", _checkpoint_hook)
    if (asks := getattr(module, "_current_user_saved_tensors_hooks", None)) is not None:
        # From torch 2.15 on a selective checkpoint warns of the program's hooks, or passes what it keeps through them.
        way.patches.put(
            module, "_current_user_saved_tensors_hooks", lambda: way.guarded(lambda: user_save_hooks.theirs(asks))
        )
    arguments.arm(context, way)
    _watch_reentrant(context, way, module.CheckpointFunction)


def _region(context: Context, way: Way, frame: Any, *given: Any) -> CheckpointRegion:
    return CheckpointRegion(context, way, place_of(frame), captured_tensors.tensors_read(*given))


def _preserve(region: CheckpointRegion, frame: Any, function: Any, args: Any, kwargs: Any) -> None:
    """Run a region that is not reentrant anew with what it read in forward."""
    weak, native = ref(frame), frame.recompute_fn

    def in_forward() -> bool:
        record: Any = weak()
        return record is not None and not record.forward_completed

    reached = captured_tensors.tensors_read(
        function, kwargs, [one for one in args if not isinstance(one, torch.Tensor)]
    )
    region.past = past = reruns.Past(region.context, region.way, region.place, in_forward, reached)

    def recompute_fn(*args: Any) -> None:
        stack = ExitStack()
        leave = region.way.entry(stack.close, also_off=True)
        record: Any = weak()
        if region.way.guarded(region.unfilled):
            record.early_stop = False
        try:
            if not region.way.guarded(lambda: past.enter_for(stack, record)):
                leave()
                if any(isinstance(one.version, Suspect) for one in list(past.reached)):
                    raise ClobberError(reruns.LOST)
            native(*args)
        finally:
            leave()

    frame.recompute_fn = passed_over(recompute_fn)


def _watch(region: CheckpointRegion, hooks: Any, frame: Any) -> None:
    """Look at what passes through the hooks of a region that is not reentrant.

    PyTorch pairs what was saved in forward with what is computed anew, by a holder that it keeps in the place of the
    tensor, and compares shapes, types and devices only. `frame` is its record of the region.
    """
    context, guarded = region.context, region.way.guarded
    pack, unpack = hooks.pack_hook, hooks.unpack_hook

    @functools.wraps(pack)  # with the marks by which torch 2.15 tells its own hooks from the program's
    def pack_hook(tensor: torch.Tensor) -> Any:
        holder = pack(tensor)
        if context.thread.watched:
            guarded(lambda: region.save(holder, tensor, place_of(sys._getframe(1))))
        return holder

    def unpack_hook(holder: Any) -> torch.Tensor:
        before = guarded(lambda: (moment(), context.bus.told, len(frame.is_recomputed)))
        tensor: torch.Tensor = unpack(holder)
        read = before and guarded(lambda: _read(region, frame, holder, tensor, *before))
        if read is None and region.past is not None and region.past.has_put_back:
            raise ClobberError(reruns.LOST)
        return tensor if read is None else read

    hooks.pack_hook, hooks.unpack_hook = passed_over(pack_hook), passed_over(unpack_hook)


def _read(
    region: CheckpointRegion, frame: Any, holder: Any, tensor: torch.Tensor, now: int, told: int, runs: int
) -> torch.Tensor:
    """What is read of a region, which may just have run anew. Raises ClobberError where bytes that were to be preserved
    are lost."""
    context = region.context
    if len(frame.is_recomputed) > runs:
        region.again = now
        # What the region was given is known to be clobbered, then: that it drifts needn't be said as well.
        region.told |= context.bus.told > told
    if region.past is not None:
        tensor = region.past.saved(holder, tensor)
    if (context.bus.listeners or region.past is not None) and not region.told:
        _compare(region, frame, holder, tensor)
        if region.must_raise():
            raise ClobberError(clobbers.CHANGED)
    return tensor


def _compare(region: CheckpointRegion, frame: Any, holder: Any, tensor: torch.Tensor) -> None:
    """Once a tensor is read that differs, tell of the first one of its region that does and will be read."""
    node, packed = private.current_node(), region.saved.get(holder)
    if packed is None:
        return
    call = here()
    if isinstance(packed.digest, OnDevice) and call is not None:
        if clobbers.is_read(holder, node):
            region.ask_later(call, node, clobbers.field_of(holder, node), packed, tensor)
        return
    if frame.early_stop and packed in region.unfilled():
        region.tell(node, clobbers.field_of(holder, node), packed, tensor, unfilled=True)
    elif _matters(region, node, holder, packed, tensor):
        different = [(packed.order, node, holder, packed, tensor)]
        different += [one for one in _recomputed(region, frame, node) if _matters(region, *one[1:])]
        _, node, holder, packed, tensor = min(different, key=lambda one: one[0])
        region.tell(node, clobbers.field_of(holder, node), packed, tensor)


_Recomputed = tuple[int, Any, Any, RegionSave, torch.Tensor]


def _recomputed(region: CheckpointRegion, frame: Any, root: Any) -> Iterator[_Recomputed]:
    """What else of a region was computed anew and is still to be read: order, node, holder, then and now."""
    for node in graph.walk([root] if root is not None else []):
        for saved in graph.saves_of_or_gone(node):
            holder = graph.content(saved)
            packed = (
                region.saved.get(holder) if isinstance(holder, private.lookup("utils.checkpoint._Holder")) else None
            )
            if packed is None:
                continue
            for group, handle in holder.handles.items():
                tensor = frame.recomputed[group].get(handle) if handle is not None else None
                if tensor is not None:
                    yield packed.order, node, holder, packed, tensor


def _matters(region: CheckpointRegion, node: Any, holder: Any, packed: RegionSave, tensor: torch.Tensor) -> bool:
    """Whether what was computed anew differs, the node reads it, and all its bytes have a meaning."""
    if not region.differs(packed, tensor):
        return False
    if node is not None and clobbers.field_of(holder, node) == _PARTLY_FILLED.get(node.name()):
        return False
    return clobbers.is_other(holder, node, tensor, packed.digest)


_PARTLY_FILLED = {"CtcLossBackward0": "result1", "MkldnnRnnLayerBackward0": "result3"}
"""What keeps some of the bytes that its memory had before: the alphas of ctc_loss, the workspace of an LSTM."""


def _watch_reentrant(context: Context, way: Way, function: Any) -> None:
    """Compare what a reentrant region returned in forward, where it saves nothing, with what it returns when run anew.

    The region is kept on the `ctx` of the Function.
    """
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def watched_forward(ctx: Any, run_function: Any, preserve_rng_state: Any, *args: Any) -> Any:
        under_way, caller = [True], sys._getframe(1)
        begun = way.guarded(lambda: began(ctx, run_function, args, under_way, caller))
        try:
            outputs = forward(ctx, run_function, preserve_rng_state, *args)
        finally:
            under_way.clear()
        if begun is not None:
            way.guarded(lambda: ended(ctx, run_function, outputs, *begun))
        return outputs

    def began(ctx: Any, run_function: Any, args: Any, under_way: list[bool], caller: FrameType) -> _Begun | None:
        if not context.thread.watched:
            return None
        region = _region(context, way, caller, run_function, args)
        before = taint.Before(run_function, args) if context.contents is not None else None
        if context.keeping and any(ctx.needs_input_grad):
            region.past = _past(region, run_function, args, lambda: bool(under_way))
        return region, before

    def ended(ctx: Any, run_function: Any, outputs: Any, region: CheckpointRegion, before: taint.Before | None) -> None:
        region.end = moment()
        packed = [region.output(one) for one in _tensors(outputs)]
        ctx.noclobber_region = (region, packed, before, run_function)
        if region.past is not None:
            region.past.forward_ended()
            ctx.run_function = functools.partial(_run_anew, region, packed, before, ref(ctx), run_function, None)

    @functools.wraps(backward)
    def watched_backward(ctx: Any, *gradients: Any) -> Any:
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


def _past(region: CheckpointRegion, run: Any, args: Any, in_forward: Callable[[], bool]) -> reruns.Past:
    reached = captured_tensors.tensors_read(run, [one for one in args if not isinstance(one, torch.Tensor)])
    return reruns.Past(region.context, region.way, region.place, in_forward, reached, args, reentrant=True)


@passed_over
def _run_anew(
    region: CheckpointRegion,
    packed: list[RegionSave],
    before: taint.Before | None,
    node: Callable[[], Any],
    run: Any,
    told: int | None,
    *args: Any,
) -> Any:
    """Run a reentrant region anew, where bytes are preserved also once the block that does so has ended. `told`: how
    much had been told when its backward began, None where that is no matter. Raises ClobberError where it drifts though
    its bytes are to be preserved.

    PyTorch calls this: nothing but `run` may raise anything else here.
    """
    guarded, past, stack = region.way.guarded, region.past, ExitStack()
    leave = region.way.entry(stack.close, also_off=True)
    try:
        followed = guarded(lambda: _followed(region, before, node(), run, told, args, stack))
        if followed is None:
            leave()
            if past is not None and any(isinstance(one.version, Suspect) for one in list(past.reached)):
                raise ClobberError(reruns.LOST)
        outputs = run(*args)
        if followed is not None and not region.told:
            guarded(lambda: _compare_outputs(region, packed, _tensors(outputs), *followed))
        if region.told and (region.context.keeping or past is not None):
            raise ClobberError(clobbers.CHANGED)
        return outputs
    finally:
        leave()


class _Followed(NamedTuple):
    """What is computed while a region runs anew: from what has changed, and from what was moved in the graph."""

    changed: taint.Derived | None
    moved: taint.Derived | None


def _followed(
    region: CheckpointRegion,
    before: taint.Before | None,
    ctx: Any,
    run: Any,
    told: int | None,
    args: Any,
    following: ExitStack,
) -> _Followed:
    if region.past is not None:
        region.past.enter(following, ctx, args)
    if told is not None:
        region.told |= region.context.bus.told > told
    region.again = moment()
    now = _now(region, before, ctx, run, args) if before is not None else None
    standing_in = region.past.standing_in() if region.past is not None else nullcontext()
    changed, moved = None, None
    if now is not None and now.calls_for_a_look(region.statistics()):
        changed = following.enter_context(taint.Derived(now, region.way, ctx.preserve_rng_state))
    if now is not None and now.moved and (region.past is not None or region.was_written(set(now.moved))):
        moved = following.enter_context(taint.Derived(now, region.way, True, moved=True))
    following.enter_context(standing_in)
    return _Followed(changed, moved)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [one for one in several if isinstance(one, torch.Tensor)]


def _now(region: CheckpointRegion, before: taint.Before, ctx: Any, run: Any, args: Any) -> taint.Now | None:
    """What a region reads now that it is run anew; None where that need not or can't be known."""
    given = [one if kept is None else kept for one, kept in zip(args, ctx.inputs, strict=True)]
    return None if region.told else before.now(run, given)


def _compare_outputs(
    region: CheckpointRegion,
    packed: list[RegionSave],
    outputs: list[torch.Tensor],
    derived: taint.Derived | None,
    moved: taint.Derived | None,
) -> None:
    """Tell where a region returns something else, unless it is known that backward reads nothing of what has changed;
    where what it was computed from was cut off the graph or joined to it, so that gradients go elsewhere; and where the
    region saved what has changed."""
    for before, tensor in zip(packed, outputs, strict=False):
        if moved is not None and moved.explains(tensor):
            wrong = True
        elif region.returns_other(before, tensor):
            wrong = derived is None or not derived.explains(tensor) or derived.reaches(outputs)
        elif derived is None:
            wrong = False
        elif before.digest is None and not tensor.is_cpu:
            # Its own bytes tell nothing; those that it was computed from do.
            wrong = derived.explains(tensor) and derived.reaches(outputs)
        else:
            # Where bytes are preserved nothing should have changed: an output that is the same for all that is luck.
            doubtful = derived.explains(tensor) if region.past is not None else derived.hides(tensor)
            wrong = doubtful and derived.reaches(outputs)
        if wrong:
            region.tell(private.current_node(), "output", before, tensor, reentrant=True)
            return
    first = None if derived is None else derived.first_changed(outputs)
    if first is not None:
        node, handle = first
        was = RegionSave(handle.alias, handle.place, handle.digest)
        region.tell(node, clobbers.field_of(handle, node), was, handle.alias, reentrant=True)
