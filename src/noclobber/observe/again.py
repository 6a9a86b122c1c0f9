"""What a backward call with `create_graph` saves of an input that it has read back: that very input, again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from noclobber.observe import graph, internals, saves
from noclobber.observe.records import geometry


@contextmanager
def saved_as_inputs(hooks: saves.Hooks | None) -> Iterator[None]:
    """Have this thread's hooks, while a backward call saves, take an input for the tensor that it was in forward.

    Without hooks PyTorch reads back that tensor itself; what hooks give it becomes another one, which would not follow
    where the tensor is given other memory later (torch 2.13; tests/observe/test_assigned.py). A result is read back as
    another one in any case.
    """
    if hooks is None or not saves.are_ours(internals.top_hooks(True)):
        yield
        return
    pack, unpack = hooks
    node: Any = None
    inputs: list[saves.Handle] = []

    def pack_again(tensor: torch.Tensor) -> saves.Handle:
        nonlocal node
        if node is not (running := internals.current_node()):
            node, inputs[:] = running, _inputs_of(running)
        return pack(_original(tensor, inputs))

    internals.never_compile(pack_again)
    saves.claim(pack_again)
    internals.pop_hooks()
    internals.push_hooks(pack_again, unpack)
    try:
        yield
    finally:
        node = None
        inputs.clear()
        if saves.are_ours(internals.top_hooks(True)):
            internals.pop_hooks()
            internals.push_hooks(*hooks)


def _inputs_of(node: Any) -> Iterator[saves.Handle]:
    """What a node has saved of its inputs."""
    for saved in graph.saves_of_or_gone(node) if node is not None else ():
        held = graph.content(saved)
        if isinstance(held, saves.Handle) and graph.output_of(node, saved.field) is None:
            yield held


def _original(tensor: torch.Tensor, inputs: list[saves.Handle]) -> torch.Tensor:
    for handle in inputs:
        original = handle.tensor()
        if original is not None and _is_same(tensor, original):
            return original
    return tensor


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.requires_grad == other.requires_grad
        and internals.storage_key(one) == internals.storage_key(other)
        and geometry(one) == geometry(other)
    )
