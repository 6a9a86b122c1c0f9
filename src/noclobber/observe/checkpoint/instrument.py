"""Watches torch.utils.checkpoint, reentrant or not: compares what a region computes again for backward with forward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
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

if TYPE_CHECKING:
    from torch.autograd.graph import Node, saved_tensors_hooks


class _Ctx(reruns.SavesTensors, Protocol):
    """The ctx of PyTorch's Function for a reentrant region, with what noclobber keeps on it."""

    needs_input_grad: tuple[bool, ...]
    inputs: list[object]
    """The region's arguments, with None in place of each tensor."""
    preserve_rng_state: bool
    run_function: Callable[..., object]
    noclobber_region: tuple[CheckpointRegion, list[RegionSave], taint.Before | None, Callable[..., object]]


def arm(context: Context, way: Way) -> None:
    """Watch every region until the recorder disarms.

    Programs may have imported `checkpoint` by name already. That is no problem: `checkpoint` looks up the functions
    that are replaced here each time it is called (torch 2.13).
    """
    native = private.lookup("utils.checkpoint._checkpoint_hook")
    private.lookup("utils.checkpoint._Holder")
    self_tests.of_checkpoints()

    def began(hooks: saved_tensors_hooks, frame: reruns.RegionFrame, caller: FrameType) -> None:
        if context.thread.watched:
            function, args, kwargs = (caller.f_locals.get(name) for name in ("fn", "args", "kwargs"))
            region = _region(context, way, caller, function, args, kwargs)
            if context.keeping:
                _preserve(region, frame, function, args, kwargs)
            _watch(region, hooks, frame)

    def _checkpoint_hook(frame: reruns.RegionFrame) -> object:
        hooks, caller = native(frame), sys._getframe(1)
        way.guarded(lambda: began(hooks, frame, caller))
        return hooks

    module: Any = torch.utils.checkpoint
    way.patches.put(module, "_checkpoint_hook", _checkpoint_hook)
    if (asks := getattr(module, "_current_user_saved_tensors_hooks", None)) is not None:
        # From torch 2.15 on, a selective checkpoint warns of the program's hooks or passes what it keeps through them.
        way.patches.put(
            module, "_current_user_saved_tensors_hooks", lambda: way.guarded(lambda: user_save_hooks.theirs(asks))
        )
    arguments.arm(context, way)
    _watch_reentrant(context, way, module.CheckpointFunction)


def _region(context: Context, way: Way, frame: FrameType, *given: object) -> CheckpointRegion:
    return CheckpointRegion(context, way, place_of(frame), captured_tensors.tensors_read(*given))


def _preserve(region: CheckpointRegion, frame: reruns.RegionFrame, function: object, args: Any, kwargs: object) -> None:
    """Make a region that is not reentrant run again with the bytes that it read in forward."""
    weak, native = ref(frame), frame.recompute_fn

    def in_forward() -> bool:
        record = weak()
        return record is not None and not record.forward_completed

    reached = captured_tensors.tensors_read(
        function, kwargs, [argument for argument in args if not isinstance(argument, torch.Tensor)]
    )
    region.past = past = reruns.Past(region.context, region.way, region.place, in_forward, reached)

    def recompute_fn(*args: object) -> None:
        stack = ExitStack()
        leave = region.way.entry(stack.close, also_off=True)
        record: Any = weak()
        if region.way.guarded(region.unfilled):
            record.early_stop = False
        try:
            if not region.way.guarded(lambda: past.enter_for(stack, record)):
                leave()
                if any(isinstance(needed.version, Suspect) for needed in list(past.reached)):
                    raise ClobberError(reruns.LOST)
            native(*args)
        finally:
            leave()

    frame.recompute_fn = passed_over(recompute_fn)


def _watch(region: CheckpointRegion, hooks: saved_tensors_hooks, frame: reruns.RegionFrame) -> None:
    """Watch what passes through the hooks of a region that is not reentrant.

    In forward PyTorch keeps a holder in place of each saved tensor. By the holder it finds the tensor that the second
    run computes, of which it compares shape, type and device only. `frame` is PyTorch's record of the region.
    """
    context, guarded = region.context, region.way.guarded
    pack, unpack = hooks.pack_hook, hooks.unpack_hook

    @functools.wraps(pack)  # copies the attributes by which torch 2.15 tells its own hooks from the program's
    def pack_hook(tensor: torch.Tensor) -> object:
        holder = pack(tensor)
        if context.thread.watched:
            guarded(lambda: region.save(holder, tensor, place_of(sys._getframe(1))))
        return holder

    def unpack_hook(holder: object) -> torch.Tensor:
        before = guarded(lambda: (moment(), context.bus.told, len(frame.is_recomputed)))
        tensor: torch.Tensor = unpack(holder)
        read = before and guarded(lambda: _read(region, frame, holder, tensor, *before))
        if read is None and region.past is not None and region.past.has_put_back:
            raise ClobberError(reruns.LOST)
        return tensor if read is None else read

    hooks.pack_hook, hooks.unpack_hook = passed_over(pack_hook), passed_over(unpack_hook)


def _read(
    region: CheckpointRegion,
    frame: reruns.RegionFrame,
    holder: object,
    tensor: torch.Tensor,
    now: int,
    told: int,
    runs: int,
) -> torch.Tensor:
    """Return the tensor that backward reads of a region, which may just have run again.

    `now`, `told` and `runs` are the moment, the clobbers reported and the runs of the region before the read. Raises
    ClobberError where bytes that noclobber had to preserve are lost.
    """
    context = region.context
    if len(frame.is_recomputed) > runs:
        region.again = now
        # If a clobber of the region's arguments was reported, the drift that follows from it is not reported as well.
        region.told |= context.bus.told > told
    if region.past is not None:
        tensor = region.past.saved(holder, tensor)
    if (context.bus.listeners or region.past is not None) and not region.told:
        _compare(region, frame, holder, tensor)
        if region.must_raise():
            raise ClobberError(clobbers.CHANGED)
    return tensor


def _compare(region: CheckpointRegion, frame: reruns.RegionFrame, holder: object, tensor: torch.Tensor) -> None:
    """Compare a tensor that backward reads with forward. If it differs, report the first tensor of the region that
    differs and will be read."""
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
        different += [computed for computed in _recomputed(region, frame, node) if _matters(region, *computed[1:])]
        _, node, holder, packed, tensor = min(different, key=lambda computed: computed[0])
        region.tell(node, clobbers.field_of(holder, node), packed, tensor)


_Recomputed = tuple[int, "Node | None", object, RegionSave, torch.Tensor]
"""The order of a save in its region, the node that reads it, its holder, the save in forward, the tensor now."""


def _recomputed(region: CheckpointRegion, frame: reruns.RegionFrame, root: Node | None) -> Iterator[_Recomputed]:
    """Yield the other tensors that a region computed again and that nodes below `root` still have to read."""
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


def _matters(
    region: CheckpointRegion, node: Node | None, holder: object, packed: RegionSave, tensor: torch.Tensor
) -> bool:
    """Return True if a tensor that was computed again differs, the node reads it, and all its bytes have a meaning."""
    if not region.differs(packed, tensor):
        return False
    if node is not None and clobbers.field_of(holder, node) == _PARTLY_FILLED.get(node.name()):
        return False
    return clobbers.is_other(holder, node, tensor, packed.digest)


_PARTLY_FILLED = {"CtcLossBackward0": "result1", "MkldnnRnnLayerBackward0": "result3"}
"""Saves that their operator fills only in part, by node: the alphas of ctc_loss, the workspace of an LSTM. The other
bytes are whatever the memory held before."""


def _watch_reentrant(context: Context, way: Way, function: type[torch.autograd.Function]) -> None:
    """Compare what a reentrant region returns in forward with what it returns when it runs again.

    Such a region saves nothing in forward, so there are no saves to compare. The region is kept on the `ctx` of the
    Function.
    """
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def watched_forward(
        ctx: _Ctx, run_function: Callable[..., object], preserve_rng_state: bool, *args: object
    ) -> object:
        under_way, caller = [True], sys._getframe(1)
        begun = way.guarded(lambda: began(ctx, run_function, args, under_way, caller))
        try:
            outputs = forward(ctx, run_function, preserve_rng_state, *args)
        finally:
            under_way.clear()
        if begun is not None:
            way.guarded(lambda: ended(ctx, run_function, outputs, *begun))
        return outputs

    def began(
        ctx: _Ctx, run_function: object, args: tuple[object, ...], under_way: list[bool], caller: FrameType
    ) -> _Begun | None:
        if not context.thread.watched:
            return None
        region = _region(context, way, caller, run_function, args)
        before = taint.Before(run_function, args) if context.contents is not None else None
        if context.keeping and any(ctx.needs_input_grad):
            region.past = _past(region, run_function, args, lambda: bool(under_way))
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


def _past(
    region: CheckpointRegion, run: object, args: tuple[object, ...], in_forward: Callable[[], bool]
) -> reruns.Past:
    reached = captured_tensors.tensors_read(
        run, [argument for argument in args if not isinstance(argument, torch.Tensor)]
    )
    return reruns.Past(region.context, region.way, region.place, in_forward, reached, args, reentrant=True)


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
    guarded, past, stack = region.way.guarded, region.past, ExitStack()
    leave = region.way.entry(stack.close, also_off=True)
    try:
        followed = guarded(lambda: _followed(region, before, node(), run, told, args, stack))
        if followed is None:
            leave()
            if past is not None and any(isinstance(needed.version, Suspect) for needed in list(past.reached)):
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
    """What a region computes while it runs again: `changed` from changed memory, `moved` from tensors whose place in
    the graph changed. None where nothing of that kind is followed."""

    changed: taint.Derived | None
    moved: taint.Derived | None


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


def _tensors(outputs: object) -> list[torch.Tensor]:
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [output for output in several if isinstance(output, torch.Tensor)]


def _now(
    region: CheckpointRegion, before: taint.Before, ctx: _Ctx, run: object, args: tuple[object, ...]
) -> taint.Now | None:
    """Return what a region reads in its second run; None if that cannot be known or the region is reported already."""
    given = [argument if kept is None else kept for argument, kept in zip(args, ctx.inputs, strict=True)]
    return None if region.told else before.now(run, given)


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
    elsewhere. If no output is wrong, report a save of the region that shows changed bytes.
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
            region.tell(private.current_node(), "output", before, tensor, reentrant=True)
            return
    first = None if derived is None else derived.first_changed(outputs)
    if first is not None:
        node, handle = first
        was = RegionSave(handle.alias, handle.place, handle.digest)
        region.tell(node, clobbers.field_of(handle, node), was, handle.alias, reentrant=True)
