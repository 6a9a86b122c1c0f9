"""What a backward call with `create_graph` saves of an input that it has read back: that very input, again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from noclobber.observe.core import save_hooks
from noclobber.observe.core.backward_calls import End
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward, geometry
from noclobber.observe.torch_api import graph, native_saves, private


def arm(context: Context, way: Way) -> None:
    """Have a thread's hooks, while a backward call saves, take an input for the tensor that it was in forward.

    Without hooks PyTorch reads back that tensor itself; what hooks give it becomes another one, which would not follow
    where the tensor is given other memory later (torch 2.13; tests/observe/detectors/test_assigned.py). A result is
    read back as another one in any case.
    """

    def begin(call: Backward) -> End | None:
        if not call.create_graph or not save_hooks.are_ours(hooks := private.top_hooks(True)):
            return None
        instead = _saving_inputs(hooks, way)
        private.pop_hooks()
        private.push_hooks(*instead)

        def ended(result: Any, error: BaseException | None) -> None:
            if private.top_hooks(True) == instead:
                private.pop_hooks()
                private.push_hooks(*hooks)

        return ended

    context.calls.watch(way, begin)


def _saving_inputs(hooks: save_hooks.Hooks, way: Way) -> save_hooks.Hooks:
    """Hooks that do so."""
    pack, unpack = hooks

    def original(tensor: torch.Tensor) -> torch.Tensor:
        return _original(tensor, _inputs_of(private.current_node()))

    def pack_again(tensor: torch.Tensor) -> save_hooks.Handle:
        instead = way.guarded(lambda: original(tensor))
        if instead is not None and instead.is_inference():
            # It was given memory from inference mode since; PyTorch refuses to save that, which ours has an alias for.
            native_saves.make(instead)
        return pack(tensor if instead is None else instead)

    private.never_compile(pack_again)
    save_hooks.claim(pack_again)
    return pack_again, unpack


def _inputs_of(node: Any) -> Iterator[save_hooks.Handle]:
    """What a node has saved of its inputs."""
    for saved in graph.saves_of_or_gone(node) if node is not None else ():
        held = graph.content(saved)
        if isinstance(held, save_hooks.Handle) and graph.output_of(node, saved.field) is None:
            yield held


def _original(tensor: torch.Tensor, inputs: Iterable[save_hooks.Handle]) -> torch.Tensor:
    for handle in inputs:
        original = handle.tensor()
        if original is not None and _is_same(tensor, original):
            return original
    return tensor


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.requires_grad == other.requires_grad
        and private.storage_key(one) == private.storage_key(other)
        and geometry(one) == geometry(other)
    )
