"""Custom Functions in forward: the one wrapper of `Function.apply`.

It records what a call keeps on its ctx and what it declares dirty, and calls the watchers. From then on writes to what
it returned as a view are remembered, whoever makes them: PyTorch may refuse the view for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.history import Memory
from noclobber.observe.core.sites import Place, caller
from noclobber.observe.torch_api import private

if TYPE_CHECKING:

    class _Ctx(torch.autograd.graph.Node):
        _forward_cls: type  # PyTorch's stubs lack it


_DECLARATIONS = ("to_save", "saved_for_forward", "non_differentiable", "materialize_grads")
"""The attributes that the methods of a ctx set. PyTorch reads and checks these itself."""


class ForwardCall:
    """A call of `apply` under way. `kept` holds where each tensor, list, tuple or dict was put on the ctx, by name."""

    __slots__ = ("applied", "ctx", "dirty", "function", "kept", "result")

    def __init__(self, function: type) -> None:
        self.function = function
        self.ctx: torch.autograd.graph.Node | None = None
        """None until the forward sets an attribute."""
        self.kept: dict[str, Place | None] = {}
        self.dirty: tuple[object, ...] = ()
        self.applied: Place | None = None
        """Where the program called `apply`; known at the end of the call."""
        self.result: object = None
        """What the call returned; known at its end."""


End = Callable[[bool], object]
"""Called when a forward has ended: with True if it returned, with False if it raised."""
Begin = Callable[[ForwardCall, tuple[object, ...]], End | None]
"""Called with a call that begins, and its arguments. Returns what to call at the end, None for nothing."""
Forget = Callable[[torch.autograd.graph.Node, str], object]
"""Called with a ctx and the name of an attribute that is set or deleted after its forward."""


class CustomForwards:
    """The watchers of these forwards."""

    def __init__(self) -> None:
        self._watching: list[tuple[Way, Begin, Forget | None]] = []

    def watch(self, way: Way, begin: Begin, forget: Forget | None = None) -> None:
        """Call `begin` for every call and `forget` for every attribute, until the way is taken off."""
        entry = (way, begin, forget)
        self._watching.append(entry)
        way.at_end(lambda: self._watching.remove(entry))

    def begin(self, call: ForwardCall, args: tuple[object, ...]) -> list[tuple[Way, End]]:
        """Tell the watchers that a call begins, and return what to call at its end."""
        ends = [(way, way.guarded(partial(begin, call, args))) for way, begin, _ in tuple(self._watching)]
        return [(way, end) for way, end in ends if end is not None]

    def forget(self, ctx: torch.autograd.graph.Node, name: str) -> None:
        """Tell the watchers that an attribute of a ctx was set or deleted after its forward."""
        for way, _, forget in tuple(self._watching):
            if forget is not None:
                way.guarded(partial(forget, ctx, name))


class _Calls(threading.local):
    def __init__(self) -> None:
        self.under_way: list[ForwardCall] = []


def arm(forwards: CustomForwards, way: Way, is_watched: Callable[[], bool], memory: Memory) -> None:
    """See every call of a custom Function in threads that are watched, except of PyTorch's own Functions."""
    native = vars(Function)["apply"]  # a Python classmethod; since torch 2.15 one written in C++
    calls = _Calls()

    def began(cls: type[Function], args: tuple[object, ...]) -> tuple[ForwardCall, list[tuple[Way, End]]] | None:
        if not is_watched() or cls.__module__.startswith("torch.") or private.transforms_active():
            return None
        call = ForwardCall(cls)
        return call, forwards.begin(call, args)

    def ended(begun: tuple[ForwardCall, list[tuple[Way, End]]], returned: bool) -> None:
        call, ends = begun
        if ends:
            call.applied = caller()
        for its_way, end in ends:
            its_way.guarded(partial(end, returned), also_off=True)

    def expect_writes(result: object) -> None:
        for one in result if isinstance(result, tuple) else (result,):
            if isinstance(one, torch.Tensor) and one.requires_grad and private.is_view_of_function(one):
                key, base = private.storage_key(one), one._base
                if key is not None and base is not None and not base.requires_grad:
                    memory.returned_as_view(key, one)

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> object:
        begun = way.guarded(lambda: began(cls, args))
        if begun is None:
            return native.__get__(None, cls)(*args, **kwargs)
        calls.under_way.append(begun[0])
        try:
            result = native.__get__(None, cls)(*args, **kwargs)
        except BaseException as error:
            calls.under_way.pop()
            way.guarded(lambda: ended(begun, False))
            without_own_frames(error)
            raise
        calls.under_way.pop()
        begun[0].result = result
        way.guarded(lambda: ended(begun, True))
        way.guarded(lambda: expect_writes(result))
        return result

    way.patches.put(Function, "apply", classmethod(apply))
    _on_attributes(forwards, way, calls)


def _on_attributes(forwards: CustomForwards, way: Way, calls: _Calls) -> None:
    """See every attribute that is set or deleted on the ctx of a custom Function."""
    set_native: Callable[[object, str, object], None] = object.__setattr__
    del_native: Callable[[object, str], None] = object.__delattr__

    def __setattr__(ctx: _Ctx, name: str, value: object) -> None:
        set_native(ctx, name, value)
        way.guarded(lambda: was_set(ctx, name, value))

    def was_set(ctx: _Ctx, name: str, value: Any) -> None:
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

    def __delattr__(ctx: _Ctx, name: str) -> None:
        del_native(ctx, name)
        way.guarded(lambda: forwards.forget(ctx, name))

    way.patches.put(BackwardCFunction, "__setattr__", __setattr__)
    way.patches.put(BackwardCFunction, "__delattr__", __delattr__)
