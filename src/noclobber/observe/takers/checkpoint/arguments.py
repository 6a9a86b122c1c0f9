"""Runs a checkpointed region that is not reentrant again with the same argument tensors that it got in forward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils.checkpoint

from noclobber.model.reports.error import ClobberError
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.save_hooks import are_ours
from noclobber.observe.core.seen.handles import Argument, Given, Handle, OfView
from noclobber.observe.core.seen.records import reading
from noclobber.observe.describe import refusals
from noclobber.observe.torch_api import before_2_12, private
from noclobber.observe.torch_api.autograd import hook_stack, native_saves
from noclobber.observe.torch_api.tensors import storages


def arm(context: Context, way: Way) -> None:
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
            way.guarded(saved_inputs, frame, args)

    def saved_inputs(frame: Any, args: tuple[object, ...]) -> None:
        if context.thread.watched:
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
                refusals.remember(error, refusals.refusal_of_read(handle, refusals.DETACHED, reading()))
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
        if context.thread.watched and node is not None:
            _mark(node._raw_saved_tensors)
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
