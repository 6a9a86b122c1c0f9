"""Custom Functions in forward: the one wrapper of `Function.apply`. It notes what a call keeps on its ctx and declares
dirty, and tells who watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.sites import Place, caller
from noclobber.observe.torch_api import private

_DECLARATIONS = ("to_save", "saved_for_forward", "non_differentiable", "materialize_grads")
"""What the methods of a ctx set; PyTorch reads and checks these itself."""


class ForwardCall:
    """One call of `apply` under way. `kept` says where each tensor, list, tuple or dict was put on the ctx."""

    __slots__ = ("applied", "ctx", "dirty", "function", "kept")

    def __init__(self, function: type) -> None:
        self.function = function
        self.ctx: Any = None
        self.kept: dict[str, Place | None] = {}
        self.dirty: tuple[Any, ...] = ()
        self.applied: Place | None = None
        """Where it was called; known at its end."""


End = Callable[[bool], object]
"""Called when a forward has ended: whether it returned, and did not raise."""
Begin = Callable[[ForwardCall, tuple[Any, ...]], End | None]
"""Called with a call that begins, and its arguments."""
Forget = Callable[[Any, str], object]
"""Called with a ctx and the name of an attribute that is set or deleted after its forward."""


class CustomForwards:
    """Who hears of them."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin, Forget | None]] = []

    def watch(self, way: Way, begin: Begin, forget: Forget | None = None) -> None:
        """Tell `begin` of every call and `forget` of every attribute, until the way is taken off."""
        entry = (way, begin, forget)
        self._watching.append(entry)
        way.at_end(lambda: self._watching.remove(entry))

    def begin(self, call: ForwardCall, args: tuple[Any, ...]) -> list[tuple[Way, End]]:
        """A call begins; gives who wants to hear of its end."""
        ends = [(way, way.guarded(partial(begin, call, args))) for way, begin, _ in tuple(self._watching)]
        return [(way, end) for way, end in ends if end is not None]

    def forget(self, ctx: Any, name: str) -> None:
        """An attribute of a ctx is another one now."""
        for way, _, forget in tuple(self._watching):
            if forget is not None:
                way.guarded(partial(forget, ctx, name))


class _Calls(threading.local):
    def __init__(self) -> None:
        self.under_way: list[ForwardCall] = []


def arm(forwards: CustomForwards, way: Way, is_watched: Callable[[], bool]) -> None:
    """See every call of a custom Function in threads that are watched; PyTorch's own Functions are not looked at."""
    native: Any = vars(Function)["apply"]  # a Python classmethod, and from torch 2.15 on one written in C++
    calls = _Calls()

    def began(cls: Any, args: Any) -> tuple[ForwardCall, list[tuple[Way, End]]] | None:
        if not is_watched() or cls.__module__.startswith("torch.") or private.transforms_active():
            return None
        call = ForwardCall(cls)
        return call, forwards.begin(call, args)

    def ended(begun: tuple[ForwardCall, list[tuple[Way, End]]], returned: bool) -> None:
        call, ends = begun
        if ends:
            call.applied = caller()
        for its_way, end in ends:
            its_way.entry(end, also_off=True)(returned)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        begun = way.guarded(lambda: began(cls, args))
        if begun is None:
            return native.__get__(None, cls)(*args, **kwargs)
        calls.under_way.append(begun[0])
        try:
            result = native.__get__(None, cls)(*args, **kwargs)
        except BaseException:
            calls.under_way.pop()
            way.guarded(lambda: ended(begun, False))
            raise
        calls.under_way.pop()
        way.guarded(lambda: ended(begun, True))
        return result

    way.patches.put(Function, "apply", classmethod(apply))
    _on_attributes(forwards, way, calls)


def _on_attributes(forwards: CustomForwards, way: Way, calls: _Calls) -> None:
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
            forwards.forget(ctx, name)

    def __delattr__(ctx: Any, name: str) -> None:
        del_native(ctx, name)
        way.guarded(lambda: forwards.forget(ctx, name))

    way.patches.put(BackwardCFunction, "__setattr__", __setattr__)
    way.patches.put(BackwardCFunction, "__delattr__", __delattr__)
