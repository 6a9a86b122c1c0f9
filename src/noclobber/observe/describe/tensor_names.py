"""Finds the name of a tensor: a local of a user frame or `module.path.weight`. Used only when a finding is made."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import torch

from noclobber.model.seen.events import Kind
from noclobber.model.seen.overlap import overlap
from noclobber.model.source import Owner, owner_of
from noclobber.observe.describe.reachable import reachable, variables
from noclobber.observe.torch_api.autograd.engine_state import backward_call
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.tensors.storages import storage_key
from noclobber.observe.torch_api.tensors.tensor_state import is_computed
from noclobber.observe.witness.layout import geometry, region, strided

_MOST_FRAMES = 40
_MOST_VALUES = 400


class Name(NamedTuple):
    """`text` is "h" or "net.fc.weight"."""

    text: str
    kind: Kind
    is_state: bool = False
    """Whether it is an attribute or a buffer that is in a graph."""


def name_of(tensor: torch.Tensor, frame: FrameType) -> Name | None:
    """Return the name of a tensor in the program's frames, from this one outward; None if it has none. The caller holds
    the tensor, and so its memory.

    It is that of a parameter or buffer on its bytes, else of a variable that is the tensor or shows the same bytes.
    Parameters come first because a Linear weight is saved transposed, under no local name.
    """
    with modes.plain():
        key = storage_key(tensor)
        return None if key is None else _found(tensor, key, frame)


def _found(tensor: torch.Tensor, key: int, frame: FrameType) -> Name | None:
    best: Name | None = None
    where, bytes_of = _place(tensor), region(geometry(tensor))

    def is_on(value: object) -> bool:
        """Return True if a value is a tensor that shares bytes with the tensor, and not only a storage."""
        if not isinstance(value, torch.Tensor) or storage_key(value) != key:
            return False
        other = region(geometry(value))
        return bytes_of is None or other is None or overlap(bytes_of, other)

    for user_frame in user_frames(frame):
        for label, value in _values(user_frame):
            if isinstance(value, torch.nn.Module):
                found = _in_module(label, value, is_on)
                if found is not None:
                    return found
            # A notebook has every value of a cell under `_` or `_7` too.
            elif (best is None or not best.text.strip("_0123456789")) and isinstance(value, torch.Tensor):
                if value is tensor or (where is not None and is_on(value) and _place(value) == where):
                    is_parameter = isinstance(value, torch.nn.Parameter)
                    best = Name(label, "parameter" if is_parameter else "tensor", "." in label and is_computed(value))
                elif is_on(_gradient(value)):
                    best = Name(f"{label}.grad", "tensor")
    whole = tensor if tensor._base is None else tensor._base
    if best is not None or is_computed(whole) or sum(spent) > _MOST_SECONDS:
        return best
    begun = time.thread_time()
    best = _deep(frame, is_on)
    spent.append(time.thread_time() - begun)
    return best


_MOST_SECONDS = 1.0
spent: list[float] = []
"""How long each search took for a name deep in what the program holds: all together no longer than this."""


def _deep(frame: FrameType, is_on: Callable[[object], bool]) -> Name | None:
    """Return the name of a weight or a buffer deeper in containers and objects: `trainer.teacher.net.weight`."""
    for held in reachable(user_frames(frame)):
        if is_on(held.value) and isinstance(held.owner, torch.nn.Module):
            is_parameter = isinstance(held.value, torch.nn.Parameter)
            is_buffer = held.name.rpartition(".")[2] in held.owner._buffers
            return Name(held.name, "parameter" if is_parameter else "buffer" if is_buffer else "tensor")
    return None


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]] | None:
    known = strided(geometry(tensor))
    return None if known is None else known[:2]


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the program's frames, innermost first. From a thread of the engine it goes on at the backward call."""
    count, call = 0, backward_call()
    while frame is not None and count < _MOST_FRAMES:
        if owner_of(frame.f_code.co_filename) is Owner.USER:
            count += 1
            yield frame
        if call is not None and frame is call.frame:
            call = call.outer
        frame = frame.f_back
        if frame is None and call is not None:
            frame, call = call.frame, call.outer


def _values(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield labels and values: locals, then globals if they differ, each with the attributes of plain objects."""
    shared = {} if frame.f_locals is frame.f_globals else frame.f_globals
    for scope in (variables(frame), shared):  # the first empties `f_locals`, after the question for it
        items = list(scope.items())[:_MOST_VALUES]
        yield from items
        for label, value in items:
            if isinstance(value, (torch.nn.Module, torch.Tensor, type)) or not hasattr(value, "__dict__"):
                continue
            if type(value).__module__ in ("builtins", "typing", "types") or isinstance(value, type(sys)):
                continue
            yield from ((f"{label}.{name}", inner) for name, inner in list(vars(value).items())[:_MOST_VALUES])


def _gradient(value: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a leaf; else None. A view is not asked if it is a leaf: that can change the program."""
    return value.grad if value.requires_grad and not value._is_view() and value.is_leaf else None


def _in_module(label: str, module: torch.nn.Module, is_on: Callable[[object], bool]) -> Name | None:
    for name, parameter in module.named_parameters():
        if is_on(parameter):
            return Name(f"{label}.{name}", "parameter")
        if is_on(parameter.grad):
            return Name(f"{label}.{name}.grad", "tensor")
    for name, buffer in module.named_buffers():
        if is_on(buffer):
            return Name(f"{label}.{name}", "buffer", is_computed(buffer))
    for name, child in module.named_modules():
        for attribute, value in vars(child).items():
            if is_on(value):
                path = f"{name}.{attribute}" if name else attribute
                return Name(f"{label}.{path}", "tensor", is_computed(value))
    return None
