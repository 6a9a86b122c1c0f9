"""torch.utils.checkpoint, reentrant or not: what a region computes anew for backward is compared with forward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
import torch.utils.checkpoint

from noclobber.model.error import ClobberError
from noclobber.observe import dependence, graph, internals, outside, refusals, reruns, testimony
from noclobber.observe.regions import Packed, Region
from noclobber.observe.saves import Argument, Handle, are_ours
from noclobber.observe.sites import place_of

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder


def arm(recorder: Recorder) -> None:
    """See every region until the recorder disarms.

    Programs import `checkpoint` by name before; it looks up what is replaced here when it is called (torch 2.13).
    """
    module: Any = torch.utils.checkpoint
    native = module._checkpoint_hook

    def _checkpoint_hook(frame: Any) -> Any:
        hooks = native(frame)
        caller = sys._getframe(1)
        if recorder.thread.entered:
            function, args, kwargs = (caller.f_locals.get(name) for name in ("fn", "args", "kwargs"))
            region = _region(recorder, caller, function, args, kwargs)
            if region is not None:
                if recorder.keeping:
                    _preserve(region, frame, function, args, kwargs)
                _watch(region, hooks, frame)
        return hooks

    recorder.patches.put(module, "_checkpoint_hook", _checkpoint_hook)
    _give_back_arguments(recorder, module._CheckpointFrame)
    _watch_reentrant(recorder, module.CheckpointFunction)


def _give_back_arguments(recorder: Recorder, frame_type: Any) -> None:
    """Run a region that is not reentrant anew with the very tensors it was given, as PyTorch does without hooks.

    What hooks unpack is another tensor, which still requires a gradient where the one given was detached in place since
    or was told to require none. PyTorch refuses an argument that had a node and has lost it. One that can't be asked
    for its node, as hooks do, is saved past them: of several views of a base that was written (torch 2.13).
    """
    save, unpacked = frame_type.save_inputs, frame_type.get_inputs

    def save_inputs(frame: Any, *args: Any) -> None:
        passed = _all_pass(save, frame, *args)
        if recorder.thread.entered and passed:
            for saved in frame.saved_args:
                if isinstance(saved, _SavedTensor) and type(saved.data) is Handle:
                    saved.data.__class__ = Argument
            frame.noclobber_given = [(one, _may_be_detached(one)) for one in args]

    def get_inputs(frame: Any) -> list[Any]:
        given = getattr(frame, "noclobber_given", None)
        if given is None:
            inputs: list[Any] = unpacked(frame)
            return inputs
        return [_given(recorder, saved, *one) for saved, one in zip(frame.saved_args, given, strict=True)]

    recorder.patches.put(frame_type, "save_inputs", save_inputs)
    recorder.patches.put(frame_type, "get_inputs", get_inputs)


def _all_pass(save: Callable[..., None], frame: Any, *args: Any) -> bool:
    """Whether arguments could be saved with our hooks: else they are without."""
    ours = internals.top_hooks(True)
    try:
        save(frame, *args)
        return True
    except RuntimeError:
        if not are_ours(ours):
            raise
    internals.pop_hooks()
    try:
        save(frame, *args)
    finally:
        internals.push_hooks(*ours)
    return False


def _may_be_detached(given: Any) -> bool:
    """Whether an argument has a node that it can lose. A view can't, and asking for its node can change a program."""
    return isinstance(given, torch.Tensor) and not given._is_view() and not given.is_leaf


def _given(recorder: Recorder, saved: Any, given: Any, had_node: bool) -> Any:
    """What a region is run anew with for one argument; `saved` is what PyTorch kept of it."""
    if not isinstance(saved, _SavedTensor):
        return saved
    handle = saved.data
    if not isinstance(handle, Handle):
        return saved.unpack()
    if had_node and given.grad_fn is None and recorder.listeners and not recorder.keeping:
        raise refusals.detached(handle, recorder.reading())
    tensor = saved.unpack()
    if recorder.keeping and given.requires_grad != tensor.requires_grad:
        return tensor
    return given if internals.storage_key(tensor) == internals.storage_key(given) else tensor


def _region(recorder: Recorder, frame: Any, *given: Any) -> Region | None:
    return recorder.guarded(lambda: Region(recorder, place_of(frame), outside.tensors_read(*given)))


def _preserve(region: Region, frame: Any, function: Any, args: Any, kwargs: Any) -> None:
    """Run a region that is not reentrant anew with what it read in forward."""
    weak, native = ref(frame), frame.recompute_fn

    def in_forward() -> bool:
        record: Any = weak()
        return record is not None and not record.forward_completed

    reached = outside.tensors_read(function, kwargs, [one for one in args if not isinstance(one, torch.Tensor)])
    past = region.recorder.guarded(lambda: reruns.Past(region.recorder, region.place, in_forward, reached))
    if past is None:
        return
    region.past = past

    def recompute_fn(*args: Any) -> None:
        with past.running_anew_for(weak()):
            native(*args)

    frame.recompute_fn = recompute_fn


def _watch(region: Region, hooks: Any, frame: Any) -> None:
    """Look at what passes through the hooks of a region that is not reentrant.

    PyTorch pairs what was saved in forward with what is computed anew, by a holder that it keeps in the place of the
    tensor, and compares shapes, types and devices only. `frame` is its record of the region.
    """
    recorder = region.recorder
    pack, unpack = hooks.pack_hook, hooks.unpack_hook

    def pack_hook(tensor: torch.Tensor) -> Any:
        holder = pack(tensor)
        if recorder.thread.entered:
            place = place_of(sys._getframe(1))
            recorder.guarded(lambda: region.save(holder, tensor, place))
        return holder

    def unpack_hook(holder: Any) -> torch.Tensor:
        now, told, runs = recorder.memory.mark(), recorder.told, len(frame.is_recomputed)
        tensor: torch.Tensor = unpack(holder)
        if len(frame.is_recomputed) > runs:
            region.again = now
            # What the region was given is known to be clobbered, then: that it drifts needn't be said as well.
            region.told |= recorder.told > told
        if region.past is not None:
            tensor = region.past.saved(holder, tensor)
        if (recorder.listeners or region.past is not None) and not region.told:
            recorder.guarded(lambda: _compare(region, frame, holder, tensor))
            if region.must_raise():
                raise ClobberError(testimony.CHANGED)
        return tensor

    hooks.pack_hook, hooks.unpack_hook = pack_hook, unpack_hook


def _compare(region: Region, frame: Any, holder: Any, tensor: torch.Tensor) -> None:
    """Once a tensor is read that differs, tell of the first one of its region that does and will be read."""
    node, packed = internals.current_node(), region.saved.get(holder)
    if packed is None:
        return
    if _is_empty(region, frame, holder, packed, node):
        region.tell(node, testimony.field_of(holder, node), packed, tensor)
    elif region.differs(packed, tensor) and _matters(holder, node):
        different = [(packed.order, node, holder, packed, tensor)]
        different += [one for one in _recomputed(region, frame, node) if region.differs(one[3], one[4])]
        _, node, holder, packed, tensor = min(different, key=lambda one: one[0])
        region.tell(node, testimony.field_of(holder, node), packed, tensor)


def _is_empty(region: Region, frame: Any, holder: Any, packed: Packed, node: Any) -> bool:
    """Whether this has no value at all: an operator fills it itself after it has been saved, and the region, run anew,
    stopped before that operator, as nothing more was to be saved. So it is with the noise of `rrelu` (torch 2.13)."""
    if not frame.early_stop or packed.node != region.last or testimony.is_read(holder, node):
        return False
    return not any(graph.output_of(node, saved.field) is not None for saved in graph.saves_of_or_gone(node))


def _recomputed(region: Region, frame: Any, root: Any) -> Iterator[tuple[int, Any, Any, Packed, torch.Tensor]]:
    """What else of a region was computed anew and is still to be read: order, node, holder, then and now."""
    for node in graph.walk([root] if root is not None else []):
        for saved in graph.saves_of_or_gone(node):
            holder = graph.content(saved)
            packed = region.saved.get(holder) if isinstance(holder, _Holder) else None
            if packed is None or not _matters(holder, node):
                continue
            for group, handle in holder.handles.items():
                tensor = frame.recomputed[group].get(handle) if handle is not None else None
                if tensor is not None:
                    yield packed.order, node, holder, packed, tensor


def _matters(holder: Any, node: Any) -> bool:
    """Whether the node reads what was packed, and all its bytes have a meaning."""
    if node is not None and testimony.field_of(holder, node) == _PARTLY_FILLED.get(node.name()):
        return False
    return testimony.is_read(holder, node)


_PARTLY_FILLED = {"CtcLossBackward0": "result1", "MkldnnRnnLayerBackward0": "result3"}
"""What keeps some of the bytes that its memory had before: the alphas of ctc_loss, the workspace of an LSTM."""
_Holder: Any = torch.utils.checkpoint._Holder
_SavedTensor: Any = torch._C._autograd.SavedTensor


def _watch_reentrant(recorder: Recorder, function: Any) -> None:
    """Compare what a reentrant region returned in forward, where it saves nothing, with what it returns when run anew.

    The region is kept on the `ctx` of the Function.
    """
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def watched_forward(ctx: Any, run_function: Any, preserve_rng_state: Any, *args: Any) -> Any:
        region, before = None, None
        if recorder.thread.entered:
            region = _region(recorder, sys._getframe(1), run_function, args)
            if recorder.contents is not None:
                before = recorder.guarded(lambda: dependence.Before(run_function, args))
            if recorder.keeping and region is not None and any(ctx.needs_input_grad):
                under_way = True
                region.past = recorder.guarded(lambda: _past(region, run_function, args, lambda: under_way))
        try:
            outputs = forward(ctx, run_function, preserve_rng_state, *args)
        finally:
            under_way = False
        if region is not None:
            region.end = recorder.memory.mark()
            packed = recorder.guarded(lambda: [region.output(one) for one in _tensors(outputs)]) or []
            ctx.noclobber_region = (region, packed, before, run_function)
            if region.past is not None:
                region.past.forward_ended()
                ctx.run_function = _with_past(region, region.past, packed, before, ref(ctx), run_function)
        return outputs

    @functools.wraps(backward)
    def watched_backward(ctx: Any, *gradients: Any) -> Any:
        watched: Any = getattr(ctx, "noclobber_region", (None, [], None, None))
        region, packed, before, run = watched
        if region is None or region.past is not None or not recorder.listeners:
            return backward(ctx, *gradients)
        told = recorder.told

        def run_and_compare(*args: Any) -> Any:
            region.told |= recorder.told > told
            return _run_and_compare(region, packed, before, ctx, run, args)

        ctx.run_function = run_and_compare
        try:
            return backward(ctx, *gradients)
        finally:
            ctx.run_function = run

    recorder.patches.put(function, "forward", staticmethod(watched_forward))
    recorder.patches.put(function, "backward", staticmethod(watched_backward))


def _past(region: Region, run: Any, args: Any, in_forward: Callable[[], bool]) -> reruns.Past:
    reached = outside.tensors_read(run, [one for one in args if not isinstance(one, torch.Tensor)])
    return reruns.Past(region.recorder, region.place, in_forward, reached, args, reentrant=True)


def _with_past(region: Region, past: reruns.Past, packed: list[Packed], before: Any, ctx: ref[Any], run: Any) -> Any:
    """How a reentrant region is run anew where bytes are preserved, also once the block that does so has ended."""

    def run_and_compare(*args: Any) -> Any:
        node: Any = ctx()
        with past.running_anew(node, args):
            return _run_and_compare(region, packed, before, node, run, args)

    return run_and_compare


def _run_and_compare(region: Region, packed: list[Packed], before: Any, ctx: Any, run: Any, args: Any) -> Any:
    """Run a reentrant region anew. Raises ClobberError where it drifts though its bytes are to be preserved."""
    guarded = region.recorder.guarded
    region.again = region.memory.mark()
    now = guarded(lambda: _now(region, before, ctx, run, args)) if before is not None else None
    standing_in = region.past.standing_in() if region.past is not None else nullcontext()
    derived, moved = None, None
    with ExitStack() as following:
        if now is not None and now.calls_for_a_look(region.statistics()):
            derived = following.enter_context(dependence.Derived(now, ctx.preserve_rng_state))
        if now is not None and now.moved and (region.past is not None or region.was_written(set(now.moved))):
            moved = following.enter_context(dependence.Derived(now, True, moved=True))
        following.enter_context(standing_in)
        outputs = run(*args)
    if not region.told:
        guarded(lambda: _compare_outputs(region, packed, _tensors(outputs), derived, moved))
    if region.must_raise():
        raise ClobberError(testimony.CHANGED)
    return outputs


def _tensors(outputs: Any) -> list[torch.Tensor]:
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [one for one in several if isinstance(one, torch.Tensor)]


def _now(region: Region, before: dependence.Before, ctx: Any, run: Any, args: Any) -> dependence.Now | None:
    """What a region reads now that it is run anew; None where that need not or can't be known."""
    given = [one if kept is None else kept for one, kept in zip(args, ctx.inputs, strict=True)]
    return None if region.told else before.now(run, given)


def _compare_outputs(
    region: Region,
    packed: list[Packed],
    outputs: list[torch.Tensor],
    derived: dependence.Derived | None,
    moved: dependence.Derived | None,
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
        else:
            # Where bytes are preserved nothing should have changed: an output that is the same for all that is luck.
            doubtful = derived.explains(tensor) if region.past is not None else derived.hides(tensor)
            wrong = doubtful and derived.reaches(outputs)
        if wrong:
            region.tell(internals.current_node(), "output", before, tensor, reentrant=True)
            return
    first = None if derived is None else derived.first_changed(outputs)
    if first is not None:
        node, handle = first
        was = Packed(handle.alias, handle.place, handle.digest)
        region.tell(node, testimony.field_of(handle, node), was, handle.alias, reentrant=True)
