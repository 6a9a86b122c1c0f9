"""Makes a backward call with `create_graph` save an input that it has read back as the same tensor as in forward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import Node

from noclobber.observe.core import save_hooks
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls import End
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen import handles
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.torch_api.autograd import engine_state, graph, hook_stack, native_saves
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.layout import geometry


def arm(context: Context, way: Way) -> None:
    """Replace a thread's hooks during backward calls with `create_graph`, so that they save inputs as without hooks.

    Without hooks PyTorch reads back the input itself. What hooks unpack becomes a new tensor, which does not follow
    when the program gives the input other memory later (torch 2.13; tests/observe/detectors/test_assigned.py). A result
    is read back as a new tensor in any case.
    """

    def begin(call: Backward) -> End | None:
        if not call.create_graph or not save_hooks.are_ours(hooks := hook_stack.top_hooks(True)):
            return None
        instead = _saving_inputs(hooks, way)
        hook_stack.pop_hooks()
        hook_stack.push_hooks(*instead)

        def ended(result: object, error: BaseException | None) -> None:
            if hook_stack.top_hooks(True) == instead:
                hook_stack.pop_hooks()
                hook_stack.push_hooks(*hooks)

        return ended

    context.calls.special.watch(way, begin)


def _saving_inputs(hooks: save_hooks.Hooks, way: Way) -> save_hooks.Hooks:
    """Return hooks that save the original input where these hooks would save the tensor that they unpacked."""
    pack, unpack = hooks

    def originals(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the input that a tensor was unpacked from, else the tensor itself; and the input on memory from
        inference mode that it shares, if there is one."""
        held = _inputs_of(engine_state.current_node())
        inputs = [original for handle in held if (original := handle.tensor()) is not None]
        key = storages.storage_key(tensor)
        refused = (one for one in inputs if one.is_inference() and storages.storage_key(one) == key)
        return next((one for one in inputs if _is_same(tensor, one)), tensor), next(refused, None)

    def pack_again(tensor: torch.Tensor) -> handles.Handle:
        instead, refused = way.guarded(lambda: originals(tensor)) or (tensor, None)
        if refused is not None:
            # The program gave this input memory from inference mode. PyTorch refuses to save that, and views of it, so
            # try it here: the pack hook below would save an alias and raise nothing.
            native_saves.make(refused)
        return pack(instead)

    return save_hooks.claim(pack_again), unpack


def _inputs_of(node: Node | None) -> Iterator[handles.Handle]:
    for saved in graph.saves_of_or_gone(node) if node is not None else ():
        held = graph.content(saved)
        if isinstance(held, handles.Handle) and graph.output_of(node, saved.field) is None:
            yield held


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.requires_grad == other.requires_grad
        and storages.storage_key(one) == storages.storage_key(other)
        and geometry(one) == geometry(other)
    )
