"""Custom Functions in forward: the one wrapper of `Function.apply`.

It records what a call keeps on its ctx and what it declares dirty, and calls the watchers. From then on writes to what
it returned as a view are remembered, whoever makes them: PyTorch may refuse the view for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls.watchers import Ends, Watchers, finish
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.torch_api.dispatch import modes

if TYPE_CHECKING:

    class _Ctx(torch.autograd.graph.Node):
        _forward_cls: type  # PyTorch's stubs lack it


_DECLARATIONS = ("to_save", "saved_for_forward", "non_differentiable", "materialize_grads")
"""The attributes that the methods of a ctx set. PyTorch reads and checks these itself."""


@dataclass(slots=True, eq=False)
class ForwardCall:
    """A call of `apply` under way. `kept` holds where each tensor, list, tuple or dict was put on the ctx, by name."""

    function: type
    args: tuple[object, ...]
    ctx: torch.autograd.graph.Node | None = None
    """None until the forward sets an attribute."""
    kept: dict[str, Place | None] = field(default_factory=dict)
    dirty: tuple[object, ...] = ()
    ends: Ends[Callable[[bool], object]] = field(default_factory=list)
    """What the watchers want to be called at the end."""
    result: object = None
    """What the call returned; known at its end."""


class CustomForwards(Watchers[Callable[[bool], object], ForwardCall]):
    """The watchers of these forwards. Each is called at the end with True if the forward returned, False if it raised;
    what it returned, and what it kept on its ctx, is on the call then."""

    def __init__(self) -> None:
        super().__init__(False)
        self.forgets: list[Callable[[torch.autograd.graph.Node, str], object]] = []
        """Those to call with the ctx and the name of an attribute that is set or deleted after the forward."""


class _Calls(threading.local):
    def __init__(self) -> None:
        self.under_way: list[ForwardCall] = []


def arm(forwards: CustomForwards, memory: Memory, way: Way) -> None:
    """See every call of a custom Function in threads that are watched, except of PyTorch's own Functions."""
    native = vars(Function)["apply"]  # a Python classmethod; since torch 2.15 one written in C++
    calls = _Calls()

    def began(cls: type[Function], args: tuple[object, ...]) -> ForwardCall | None:
        if not memory.thread.watched or cls.__module__.startswith("torch.") or modes.transforms_active():
            return None
        call = ForwardCall(cls, args)
        call.ends = forwards.begin(call)
        return call

    def ended(call: ForwardCall, returned: bool) -> None:
        ends, call.ends = call.ends, []  # they refer to the call, which would keep what it holds
        finish(ends, returned)
        for one in call.result if isinstance(call.result, tuple) else (call.result,):
            base = one._base if isinstance(one, torch.Tensor) and one.requires_grad else None
            if base is not None and not base.requires_grad:
                memory.returned_by_function(one)

    begins, ends = way.entry(began), way.entry(ended, also_off=True)

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> object:
        call = begins(cls, args)
        if call is None:
            return native.__get__(None, cls)(*args, **kwargs)
        calls.under_way.append(call)
        try:
            call.result = result = native.__get__(None, cls)(*args, **kwargs)
        except BaseException as error:
            calls.under_way.pop()
            ends(call, False)
            without_own_frames(error)
            raise
        calls.under_way.pop()
        ends(call, True)
        return result

    way.patches.put(Function, "apply", classmethod(apply))
    _on_attributes(forwards, way, calls)


def _on_attributes(forwards: CustomForwards, way: Way, calls: _Calls) -> None:
    """See every attribute that is set or deleted on the ctx of a custom Function."""
    set_native: Callable[[object, str, object], None] = object.__setattr__
    del_native: Callable[[object, str], None] = object.__delattr__

    def __setattr__(ctx: _Ctx, name: str, value: object) -> None:
        set_native(ctx, name, value)
        noted(ctx, name, value)

    def was_set(ctx: _Ctx, name: str, value: Any) -> None:
        under_way = calls.under_way
        if under_way and under_way[-1].function is ctx._forward_cls:
            call = under_way[-1]
            call.ctx = ctx
            if name == "dirty_tensors":
                call.dirty = value
            elif isinstance(value, (torch.Tensor, list, tuple, dict)) and name not in _DECLARATIONS:
                if not isinstance(value, tuple) or any(isinstance(part, torch.Tensor) for part in value):
                    call.kept[name] = caller()
                else:  # it never gets a tensor, as a list or a dict may
                    call.kept.pop(name, None)
        else:
            forgotten(ctx, name)

    def forgotten(ctx: _Ctx, name: str) -> None:
        for forget in tuple(forwards.forgets):
            forget(ctx, name)

    def __delattr__(ctx: _Ctx, name: str) -> None:
        del_native(ctx, name)
        way.guarded(forgotten, ctx, name)

    noted = way.entry(was_set)
    way.patches.put(BackwardCFunction, "__setattr__", __setattr__)
    way.patches.put(BackwardCFunction, "__delattr__", __delattr__)
