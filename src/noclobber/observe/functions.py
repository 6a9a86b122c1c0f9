"""Custom Functions in forward: what each keeps on its ctx, where, and what it declares dirty, told once it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.observe import internals, operators, stashes, undeclared
from noclobber.observe.sites import Place, caller

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


def arm(recorder: Recorder) -> None:
    """See every call of a custom Function until the recorder disarms; PyTorch's own Functions are not looked at."""
    native: Any = vars(Function)["apply"]  # a Python classmethod, and from torch 2.15 on one written in C++
    calls, kept, writers = _Calls(), stashes.Stashes(recorder), undeclared.Writers(recorder)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        ours = not recorder.thread.entered or cls.__module__.startswith("torch.") or internals.transforms_active()
        if ours:
            return native.__get__(None, cls)(*args, **kwargs)
        call = Call(cls)
        calls.under_way.append(call)
        inputs = recorder.guarded(lambda: writers.began(args))
        try:
            result = native.__get__(None, cls)(*args, **kwargs)
        finally:
            calls.under_way.pop()
            if inputs:
                writers.left(inputs)
        if call.kept and call.ctx is not None:
            place = caller()
            recorder.guarded(lambda: kept.take(call.ctx, call.function, call.kept, place))
        if inputs:
            recorder.guarded(lambda: writers.ended(inputs, call.dirty, call.function, caller()))
        return result

    recorder.patches.put(Function, "apply", classmethod(apply))
    _on_attributes(recorder, calls, kept)
    stashes.around_backward(recorder, kept)
    writers.arm()
    operators.compare(undeclared.Operators(recorder).before)


def _on_attributes(recorder: Recorder, calls: _Calls, kept: stashes.Stashes) -> None:
    set_native: Callable[[Any, str, Any], None] = object.__setattr__
    del_native: Callable[[Any, str], None] = object.__delattr__

    def __setattr__(ctx: Any, name: str, value: Any) -> None:
        set_native(ctx, name, value)
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
        kept.forget(ctx, name)

    recorder.patches.put(BackwardCFunction, "__setattr__", __setattr__)
    recorder.patches.put(BackwardCFunction, "__delattr__", __delattr__)
