"""Checkpointed regions that are not reentrant: each save that a second run computes is compared with forward. It runs
with the same argument tensors that the region got then."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any
from weakref import ref

import torch
import torch.utils.checkpoint
from torch.autograd.graph import Node, saved_tensors_hooks

from noclobber.model.reports.error import ClobberError
from noclobber.observe.core import engine
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.save_hooks import are_ours
from noclobber.observe.core.seen import reads
from noclobber.observe.core.seen.handles import Argument, Given, Handle, OfView
from noclobber.observe.core.seen.records import here, reading
from noclobber.observe.core.seen.sites import place_of
from noclobber.observe.describe import clobbers, refusals
from noclobber.observe.describe.reachable import variables
from noclobber.observe.takers.checkpoint import forward_bytes
from noclobber.observe.takers.checkpoint.regions import CheckpointRegion, Holder, RegionSave, saved_under
from noclobber.observe.torch_api import before_2_12, private
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack, native_saves
from noclobber.observe.torch_api.frames import passed_over
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import OnDevice


def arm(context: Context, way: Way) -> None:
    """Watch these regions until the recorder disarms.

    Programs may have imported `checkpoint` by name already. That is no problem: `checkpoint` looks up the function that
    is replaced here each time it is called (torch 2.13).
    """
    native = private.lookup("utils.checkpoint._checkpoint_hook")
    again = private.lookup("utils.checkpoint._recomputation_hook")

    def began(hooks: saved_tensors_hooks, frame: forward_bytes.RegionFrame, caller: FrameType) -> None:
        if context.thread.watched:
            given = variables(caller)
            function, args, kwargs = given["fn"], given["args"], given["kwargs"]
            read = reads.read_by(function, args, kwargs)
            region = CheckpointRegion(context, way, place_of(caller), read)
            if context.keeping:
                weak = ref(frame)
                region.past = forward_bytes.Past(
                    context, way, region.place, lambda: is_in_forward(weak()), read.tensors
                )
            _watch_second_run(region, frame, function, kwargs)
            _watch(region, hooks, frame)

    def is_in_forward(frame: forward_bytes.RegionFrame | None) -> bool:
        return frame is not None and not frame.forward_completed

    def _checkpoint_hook(frame: forward_bytes.RegionFrame) -> object:
        hooks, caller = native(frame), sys._getframe(1)
        way.guarded(began, hooks, frame, caller)
        return hooks

    def _recomputation_hook(*args: object) -> ExitStack:
        stack = ExitStack()
        if (ended := way.guarded(engine.log, context)) is not None:
            stack.callback(way.entry(ended, also_off=True))
        stack.enter_context(again(*args))
        return stack

    way.patches.put(torch.utils.checkpoint, "_checkpoint_hook", _checkpoint_hook)
    way.patches.put(torch.utils.checkpoint, "_recomputation_hook", _recomputation_hook)


def _watch_second_run(
    region: CheckpointRegion, frame: forward_bytes.RegionFrame, function: object, kwargs: dict[str, object]
) -> None:
    """Note when a region runs again, and let it read the bytes from forward where they are preserved."""
    weak, native, guarded = ref(frame), frame.recompute_fn, region.way.guarded

    def begins(stack: ExitStack, args: tuple[object, ...]) -> bool:
        record: Any = weak()
        given = args[1:] if args and args[0] is kwargs else args  # torch 2.10 hands the keyword arguments over first
        region.begins_again(stack, reads.read_by(function, given, kwargs))
        if region.past is None:
            return True
        if region.unfilled():
            record.early_stop = False
        return region.past.enter_for(stack, record)

    def recompute_fn(*args: object) -> None:
        stack = ExitStack()
        leave = region.way.entry(stack.close, also_off=True)
        try:
            if not guarded(begins, stack, args):
                leave()
                region.must_read_as_it_is()
            native(*args)
        finally:
            leave()

    frame.recompute_fn = passed_over(recompute_fn)


def _watch(region: CheckpointRegion, hooks: saved_tensors_hooks, frame: forward_bytes.RegionFrame) -> None:
    """Watch what passes through the hooks of a region that is not reentrant.

    In forward PyTorch keeps a holder in place of each saved tensor. By the holder it finds the tensor that the second
    run computes, of which it compares shape, type and device only. `frame` is PyTorch's record of the region.
    """
    way, bus = region.way, region.context.bus
    pack, unpack = hooks.pack_hook, hooks.unpack_hook
    noted, is_as_saved = region.functions()

    @functools.wraps(pack)  # copies the attributes by which torch 2.15 tells its own hooks from the program's
    def pack_hook(tensor: torch.Tensor) -> object:
        holder = pack(tensor)
        noted(holder, tensor)
        return holder

    def unpack_hook(holder: Holder) -> torch.Tensor:
        told = bus.told
        try:
            tensor: torch.Tensor = unpack(holder)
        except Exception as error:
            way.guarded(region.failed, error)
            raise
        if bus.told == told and is_as_saved(holder, tensor):
            return tensor
        read = way.guarded(_read, region, frame, holder, tensor, told)
        if read is None and region.past is not None and region.past.has_put_back:
            raise ClobberError(forward_bytes.LOST)
        return tensor if read is None else read

    hooks.pack_hook, hooks.unpack_hook = passed_over(pack_hook), passed_over(unpack_hook)


def _read(
    region: CheckpointRegion,
    frame: forward_bytes.RegionFrame,
    holder: Holder,
    tensor: torch.Tensor,
    told: int,
) -> torch.Tensor:
    """Return the tensor that backward reads of a region, which may just have run again.

    `told` is how many clobbers had been reported before the read. Raises ClobberError where bytes that noclobber had to
    preserve are lost.
    """
    context = region.context
    # If a clobber of the region's arguments was reported, the drift that follows from it is not reported as well.
    region.told |= context.bus.told > told
    if region.past is not None:
        tensor = region.past.saved(holder, tensor)
    if (context.bus.listeners or region.past is not None) and not region.told:
        _compare(region, frame, holder, tensor)
        if region.must_raise():
            raise ClobberError(clobbers.CHANGED)
    return tensor


def _compare(region: CheckpointRegion, frame: forward_bytes.RegionFrame, holder: Holder, tensor: torch.Tensor) -> None:
    """Compare a tensor that backward reads with forward. If it differs, report the first tensor of the region that
    differs and will be read."""
    node, packed, call = engine_state.current_node(), saved_under(holder), here()
    if packed is None:
        return
    stays = isinstance(packed.digest, OnDevice) or (packed.rough is not None and not region.differs(packed, tensor))
    if stays and call is not None:
        field = clobbers.field_of(holder, node)
        if clobbers.is_read(holder, node) and (node is None or field not in _unfilled(node)):
            region.ask_later(call, node, field, packed, tensor)
        return
    if frame.early_stop and packed in region.unfilled():
        region.tell(node, clobbers.field_of(holder, node), packed, tensor, unfilled=True)
    elif _matters(region, node, holder, packed, tensor):
        different = [(packed.order, node, holder, packed, tensor)]
        different += [computed for computed in _recomputed(region, frame, node) if _matters(region, *computed[1:])]
        _, node, holder, packed, tensor = min(different, key=lambda computed: computed[0])
        region.tell(node, clobbers.field_of(holder, node), packed, tensor)


_Recomputed = tuple[int, "Node | None", Holder, RegionSave, torch.Tensor]
"""The order of a save in its region, the node that reads it, its holder, the save in forward, the tensor now."""


def _recomputed(region: CheckpointRegion, frame: forward_bytes.RegionFrame, root: Node | None) -> Iterator[_Recomputed]:
    """Yield the other tensors that a region computed again and that nodes below `root` still have to read."""
    holders = private.lookup("utils.checkpoint._Holder")
    for node in graph.walk([root] if root is not None else []):
        for saved in graph.saves_of_or_gone(node):
            holder = graph.content(saved)
            packed = saved_under(holder) if isinstance(holder, holders) else None
            if packed is None:
                continue
            for group, handle in holder.handles.items():
                tensor = frame.recomputed[group].get(handle) if handle is not None else None
                if tensor is not None:
                    yield packed.order, node, holder, packed, tensor


def _matters(
    region: CheckpointRegion, node: Node | None, holder: Holder, packed: RegionSave, tensor: torch.Tensor
) -> bool:
    """Return True if a tensor that was computed again differs, the node reads it, and all its bytes have a meaning."""
    if not region.differs(packed, tensor):
        return False
    if node is not None and clobbers.field_of(holder, node) in _unfilled(node):
        return False
    return clobbers.is_other(holder, node, tensor, packed.digest)


def _unfilled(node: Node) -> tuple[str, ...]:
    """Return the saves of a node that its operator does not fill, or only in part: the rest is what the memory held
    before. An attention without dropout draws nothing, and still keeps where it drew (torch 2.11 on CUDA;
    tests/device/test_right_programs.py, checkpointed_attention); the sums that it keeps have rows beyond the last."""
    name = node.name()
    if "Attention" in name:
        drawn = ("philox_seed", "philox_offset") if getattr(node, "_saved_dropout_p", None) == 0 else ()
        return ("log_sumexp", "logsumexp", *drawn)
    return _PARTLY_FILLED.get(name, ())


_PARTLY_FILLED = {
    "CtcLossBackward0": ("result1",),
    "CudnnRnnBackward0": ("result3", "result4"),
    "MkldnnRnnLayerBackward0": ("result3",),
}
"""By node: the alphas of ctc_loss, the workspaces of an LSTM."""


def give_arguments_again(context: Context, way: Way) -> None:
    """Give each region its own arguments again, as PyTorch does without hooks, until the recorder disarms.

    What hooks unpack is another tensor. It still requires a gradient where the program has since detached the argument
    in place, or turned its requires_grad off. PyTorch refuses an argument that had a node and has lost it.

    Hooks read the node of what they pack. PyTorch refuses that for one of several views of a base that was written:
    such an argument is saved without hooks (torch 2.13).
    """
    frame_type = private.lookup("utils.checkpoint._CheckpointFrame")
    if not before_2_12.is_used():
        _from_frames(context, way, frame_type)
    else:
        _from_nodes(context, way)


def _from_frames(context: Context, way: Way, frame_type: Any) -> None:
    """Replace the methods of PyTorch's record of a region, which saves each argument by itself."""
    save, unpacked = frame_type.save_inputs, frame_type.get_inputs
    saved_tensor = private.lookup("_C._autograd.SavedTensor")

    def save_inputs(frame: Any, *args: object) -> None:
        ours = hook_stack.top_hooks(True)
        try:
            save(frame, *args)
        except RuntimeError:
            if not way.guarded(are_ours, ours):
                raise
            with native_saves.without_hooks():
                save(frame, *args)
        else:
            way.guarded(saved_inputs, frame, args, ours)

    def saved_inputs(frame: Any, args: tuple[object, ...], hooks: hook_stack.Pair | None) -> None:
        # What other hooks pack may be kept elsewhere. PyTorch then keeps no argument alive.
        if context.thread.watched and are_ours(hooks):
            given = [Given(argument, _may_be_detached(argument)) for argument in args]
            _mark(save for save in frame.saved_args if isinstance(save, saved_tensor))
            frame.noclobber_given = given

    def get_inputs(frame: Any) -> list[object]:
        given = getattr(frame, "noclobber_given", None)
        if given is None:
            inputs: list[object] = unpacked(frame)
            return inputs
        way.guarded(refuse_detached, frame.saved_args, given)
        inputs = unpacked(frame)
        return way.guarded(given_again, frame.saved_args, given, inputs) or inputs

    def given_again(saved: list[object], given: list[Given], inputs: list[object]) -> list[object]:
        rows = zip(saved, given, inputs, strict=True)
        return [_either(context, getattr(save, "data", None), was, tensor) for save, (was, _), tensor in rows]

    def refuse_detached(saved: list[object], given: list[Given]) -> None:
        for save, (tensor, had_node) in zip(saved, given, strict=True) if context.bus.listeners else ():
            handle = save.data if isinstance(save, saved_tensor) else None
            if isinstance(handle, Handle) and had_node and tensor.grad_fn is None and not context.keeping:
                error = ClobberError(refusals.DETACHED)
                refusals.remember(error, refusals.refusal_of_read(handle, reading()))
                raise error

    way.patches.put(frame_type, "save_inputs", save_inputs)
    way.patches.put(frame_type, "get_inputs", get_inputs)


def _may_be_detached(argument: object) -> bool:
    """Return True if an argument has a node that it can lose. A view cannot lose its node, and reading the node of a
    view can change a program, as asking it for `is_leaf` does. A parameter is a leaf, and an uninitialized one answers
    nothing."""
    if not isinstance(argument, torch.Tensor) or isinstance(argument, torch.nn.Parameter) or not argument.requires_grad:
        return False
    return not argument._is_view() and not argument.is_leaf


def _from_nodes(context: Context, way: Way) -> None:
    """Do the same where a node saves the arguments.

    As without hooks, an argument that was detached since is given to the region, and one of several views whose base
    was written is not.
    """

    def saved_by(node: Any, args: tuple[object, ...]) -> None:
        # What other hooks pack may be kept elsewhere. PyTorch then keeps no argument alive.
        saves = () if node is None else node._raw_saved_tensors
        if context.thread.watched and node is not None and all(isinstance(save.data, Handle) for save in saves):
            _mark(saves)
            node.noclobber_given = [Given(one, had_node=False) for one in args if isinstance(one, torch.Tensor)]

    def instead(node: Any, tensors: tuple[object, ...]) -> tuple[object, ...] | None:
        given = getattr(node, "noclobber_given", None)
        if given is None:
            return None
        rows = zip(node._raw_saved_tensors, given, tensors, strict=True)
        return tuple(_either(context, saved.data, was, tensor) for saved, (was, _), tensor in rows)

    before_2_12.on_arguments(way.patches.put, way.entry(saved_by), way.entry(instead))


def _mark(saved: Iterable[Any]) -> None:
    """Give the handles of arguments a class of their own: they are not saves of a node that runs."""
    for save in saved:
        if type(save.data) is Handle or isinstance(save.data, OfView):
            save.data.__class__ = Argument


def _either(context: Context, handle: object, given: Any, tensor: Any) -> object:
    """Return what a region gets for one argument in its second run: the argument `given` in forward, or `tensor`, which
    the hooks unpacked."""
    if not isinstance(handle, Handle):
        return tensor
    if context.keeping and given.requires_grad != tensor.requires_grad:
        return tensor
    return given if storages.storage_key(tensor) == storages.storage_key(given) else tensor
