"""Custom Functions in forward: what each keeps on its ctx, where, and what it declares dirty, told once it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.sites import Place, caller
from noclobber.observe.detectors import ctx_attributes, undeclared_writes
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder

_DECLARATIONS = ("to_save", "saved_for_forward", "non_differentiable", "materialize_grads")
"""What the methods of a ctx set; PyTorch reads and checks these itself."""


class Call:
    """One call of `apply` under way. `kept` says where each tensor, list, tuple or dict was put on the ctx."""

    __slots__ = ("ctx", "dirty", "function", "kept")

    def __init__(self, function: type) -> None:
        self.function = function
        self.ctx: Any = None
        self.kept: dict[str, Place | None] = {}
        self.dirty: tuple[Any, ...] = ()


class _Calls(threading.local):
    def __init__(self) -> None:
        self.under_way: list[Call] = []


def arm(recorder: Recorder, way: Way) -> None:
    """See every call of a custom Function until the recorder disarms; PyTorch's own Functions are not looked at."""
    native: Any = vars(Function)["apply"]  # a Python classmethod, and from torch 2.15 on one written in C++
    calls, kept, writers = _Calls(), ctx_attributes.Stashes(recorder, way), undeclared_writes.Writers(recorder, way)

    def began(cls: Any, args: Any) -> _Begun | None:
        if not recorder.thread.watched or cls.__module__.startswith("torch.") or private.transforms_active():
            return None
        return _Begun(Call(cls), writers.began(args))

    def ended(begun: _Begun) -> None:
        call, inputs = begun
        if call.kept and call.ctx is not None:
            kept.take(call.ctx, call.function, call.kept, caller())
        if inputs:
            writers.ended(inputs, call.dirty, call.function, caller())

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        begun = way.guarded(lambda: began(cls, args))
        if begun is None:
            return native.__get__(None, cls)(*args, **kwargs)
        calls.under_way.append(begun.call)
        try:
            result = native.__get__(None, cls)(*args, **kwargs)
        finally:
            calls.under_way.pop()
            if begun.inputs:
                way.guarded(lambda: writers.left(begun.inputs))
        way.guarded(lambda: ended(begun))
        return result

    way.patches.put(Function, "apply", classmethod(apply))
    _on_attributes(way, calls, kept)
    recorder.customs.watch(way, kept.begins)
    recorder.calls.watch(way, writers.backward_begins)


class _Begun(NamedTuple):
    """A forward that has begun, with its inputs in the graph."""

    call: Call
    inputs: list[undeclared_writes.Input]


def _on_attributes(way: Way, calls: _Calls, kept: ctx_attributes.Stashes) -> None:
    set_native: Callable[[Any, str, Any], None] = object.__setattr__
    del_native: Callable[[Any, str], None] = object.__delattr__

    def __setattr__(ctx: Any, name: str, value: Any) -> None:
        set_native(ctx, name, value)
        way.guarded(lambda: was_set(ctx, name, value))

    def was_set(ctx: Any, name: str, value: Any) -> None:
        under_way = calls.under_way
        if under_way and under_way[-1].function is ctx._forward_cls:
            call = under_way[-1]
            call.ctx = ctx
            if name == "dirty_tensors":
                call.dirty = value
            elif isinstance(value, (torch.Tensor, list, tuple, dict)) and name not in _DECLARATIONS:
                call.kept[name] = caller(1)
        else:
            kept.forget(ctx, name)

    def __delattr__(ctx: Any, name: str) -> None:
        del_native(ctx, name)
        way.guarded(lambda: kept.forget(ctx, name))

    way.patches.put(BackwardCFunction, "__setattr__", __setattr__)
    way.patches.put(BackwardCFunction, "__delattr__", __delattr__)
