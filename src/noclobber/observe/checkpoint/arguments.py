"""The arguments of a checkpointed region that is not reentrant: it is run anew with the very tensors it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils.checkpoint

from noclobber.model.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import reading
from noclobber.observe.core.save_hooks import Argument, ArgumentOfNode, Handle, OfView, are_ours
from noclobber.observe.describe import refusals
from noclobber.observe.torch_api import private


def arm(context: Context, way: Way) -> None:
    """Give regions what they were given, until the recorder disarms, as PyTorch does without hooks.

    What hooks unpack is another tensor, which still requires a gradient where the one given was detached in place since
    or was told to require none. PyTorch refuses an argument that had a node and has lost it. One that can't be asked
    for its node, as hooks do, is saved past them: of several views of a base that was written (torch 2.13).
    """
    frame_type = private.lookup("utils.checkpoint._CheckpointFrame")
    if hasattr(frame_type, "save_inputs"):
        _from_frames(context, way, frame_type)
    else:  # torch 2.10 and 2.11
        _from_nodes(context, way, private.lookup("utils.checkpoint._NoopSaveInputs"))


def _from_frames(context: Context, way: Way, frame_type: Any) -> None:
    """PyTorch's record of a region saves the arguments, each by itself."""
    save, unpacked = frame_type.save_inputs, frame_type.get_inputs
    saved_tensor = private.lookup("_C._autograd.SavedTensor")

    def save_inputs(frame: Any, *args: Any) -> None:
        ours = private.top_hooks(True)
        try:
            save(frame, *args)
        except RuntimeError:
            if not way.guarded(lambda: are_ours(ours)):
                raise
            private.pop_hooks()
            try:
                save(frame, *args)
            finally:
                private.push_hooks(*ours)
        else:
            way.guarded(lambda: saved_inputs(frame, args))

    def saved_inputs(frame: Any, args: Any) -> None:
        if context.thread.watched:
            given = [(one, _may_be_detached(one)) for one in args]
            _mark((one for one in frame.saved_args if isinstance(one, saved_tensor)), Argument)
            frame.noclobber_given = given

    def get_inputs(frame: Any) -> list[Any]:
        given = getattr(frame, "noclobber_given", None)
        if given is None:
            inputs: list[Any] = unpacked(frame)
            return inputs
        way.guarded(lambda: refuse_detached(frame.saved_args, given))
        inputs = unpacked(frame)
        return way.guarded(lambda: given_again(frame.saved_args, given, inputs)) or inputs

    def given_again(saved: list[Any], given: Any, inputs: list[Any]) -> list[Any]:
        rows = zip(saved, given, inputs, strict=True)
        return [_either(context, getattr(one, "data", None), was, tensor) for one, (was, _), tensor in rows]

    def refuse_detached(saved: list[Any], given: Any) -> None:
        for one, (tensor, had_node) in zip(saved, given, strict=True) if context.bus.listeners else ():
            handle = one.data if isinstance(one, saved_tensor) else None
            if isinstance(handle, Handle) and had_node and tensor.grad_fn is None and not context.keeping:
                error = ClobberError(refusals.DETACHED)
                refusals.remember(error, refusals.refusal_of_read(handle, refusals.DETACHED, reading()))
                raise error

    way.patches.put(frame_type, "save_inputs", save_inputs)
    way.patches.put(frame_type, "get_inputs", get_inputs)


def _may_be_detached(given: Any) -> bool:
    """Whether an argument has a node that it can lose. A view can't, and asking for its node can change a program."""
    return isinstance(given, torch.Tensor) and not given._is_view() and not given.is_leaf


def _from_nodes(context: Context, way: Way, function: Any) -> None:
    """A Function of PyTorch's own saves the arguments, and its node is asked for all of them at once.

    It gets one that was detached since, and none of several views whose base was written, as without hooks.
    """
    save = function.apply
    unpacked = private.lookup("_C._FunctionBase.saved_tensors")

    def apply(*args: Any) -> Any:
        result = save(*args)
        way.guarded(lambda: saved_by(result.grad_fn, args))
        return result

    def saved_by(node: Any, args: Any) -> None:
        if context.thread.watched and node is not None:
            _mark(node._raw_saved_tensors, ArgumentOfNode)
            node.noclobber_given = [one for one in args if isinstance(one, torch.Tensor)]

    def saved_tensors(node: Any) -> tuple[Any, ...]:
        tensors: tuple[Any, ...] = unpacked.__get__(node)
        given = getattr(node, "noclobber_given", None)
        if given is None:
            return tensors
        return way.guarded(lambda: instead(node, given, tensors)) or tensors

    def instead(node: Any, given: Any, tensors: Any) -> tuple[Any, ...]:
        rows = zip(node._raw_saved_tensors, given, tensors, strict=True)
        return tuple(_either(context, saved.data, one, tensor) for saved, one, tensor in rows)

    way.patches.put(function, "apply", staticmethod(apply))
    way.patches.put(function._backward_cls, "saved_tensors", property(saved_tensors))


def _mark(saved: Iterable[Any], kind: type[Argument]) -> None:
    """What hooks have kept of arguments is no save of a node that runs."""
    for one in saved:
        if type(one.data) in (Handle, OfView):
            one.data.__class__ = kind


def _either(context: Context, handle: Any, given: Any, tensor: Any) -> Any:
    """What a region is run anew with for one argument: it, or `tensor`, which hooks have unpacked."""
    if not isinstance(handle, Handle):
        return tensor
    if context.keeping and given.requires_grad != tensor.requires_grad:
        return tensor
    return given if private.storage_key(tensor) == private.storage_key(given) else tensor
