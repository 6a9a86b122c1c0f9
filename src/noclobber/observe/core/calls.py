"""Calls of the engine and of custom Functions, and those who are told that one begins, and then that it has ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

import torch
from torch.autograd.function import BackwardCFunction, Function

from noclobber.model.forks import lock
from noclobber.model.reports.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.core.seen.records import Backward
from noclobber.observe.core.seen.sites import Place, caller
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.frames import passed_over

Args = TypeVarTuple("Args")
Ending = TypeVar("Ending", bound=Callable[..., Any])
Ends = list[tuple[Way, Ending]]
"""What to call at the end of a call, each with the way of seeing that wants it."""
ALWAYS: Collection[object] = (None,)


class Watchers(Generic[Ending, *Args]):
    """The watchers of calls of one kind. Each returns what is to be called at the end of the call, None for nothing.

    `nothing` is what that gets where the call could not begin.
    """

    def __init__(self, *nothing: object) -> None:
        self._nothing = nothing
        self.them: list[tuple[Way, Callable[[*Args], Ending | None], Collection[object]]] = []
        """Each with what must not be empty for it to be called. It is always the same object."""

    def watch(self, way: Way, begin: Callable[[*Args], Ending | None], among: Collection[object] = ALWAYS) -> None:
        """Call `begin` before every call while there is anything in `among`, until the way is taken off."""
        way.add(self.them, (way, begin, among))

    def begin(self, *args: *Args) -> Ends[Ending]:
        """Tell the watchers that a call begins, and return what to call at its end. Raises ClobberError if the call
        lacks what it needs; for those who were told before, it has ended then."""
        ends: Ends[Ending] = []
        try:
            for way, begin, among in tuple(self.them):
                if among and (end := way.guarded(begin, *args)) is not None:
                    ends.append((way, end))
        except BaseException:
            finish(ends, *self._nothing)
            raise
        return ends


def finish(ends: Ends[Any], *about: object) -> ClobberError | None:
    """Call what watchers want to be called at the end of a call, the last first. Return the error to raise, if any."""
    stopped = None
    for way, end in reversed(ends):
        stopped = way.guarded(end, *about, also_off=True) or stopped
    return stopped


End = Callable[[object, BaseException | None], ClobberError | None]
"""Called when a backward call has ended, with what it returned and what it raised, one of them None. Returns the error
that the call raises instead of returning, None for none."""
Ended = Callable[[Backward, object, BaseException | None], ClobberError | None]
"""Called as End is, with the call."""


class BackwardCalls(Watchers[End, Backward]):
    """The watchers of backward calls. Most calls need none of them, and then cost little."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.special: Watchers[End, Backward] = Watchers(None, None)
        """The watchers of the calls that name what they want the gradients of, and of those with `create_graph`."""
        self.with_python: Watchers[End, Backward] = Watchers(None, None)
        """Those that are told once in each call, before any Python code runs in it."""
        self._ends: list[tuple[Way, Ended]] = []
        self._beginning = lock()

    def watch_ends(self, way: Way, ended: Ended) -> None:
        """Call `ended` at the end of each call that raised, or that left something to compare (`Backward.later`)."""
        way.add(self._ends, (way, ended))

    def begins(self, call: Backward) -> None:
        """Tell the watchers that a call begins. What to call at its end goes into `call.ends`."""
        call.ends += self.begin(call)
        if call.inputs or call.create_graph:
            call.ends += self.special.begin(call)

    def python_begins(self, call: Backward) -> None:
        """Tell the watchers that Python code may run in a call from now on."""
        with self._beginning:  # threads of the engine work for one call
            if not call.with_python:
                call.with_python = True
                call.ends += self.with_python.begin(call)

    def end(self, call: Backward, result: object, error: BaseException | None) -> ClobberError | None:
        """Call what the watchers want to be called at the end, the last first. Return the error to raise, if any."""
        left = self._ends if error is not None or call.later else []
        stopped = finish(left, call, result, error)
        ends, call.ends = call.ends, []  # they refer to the call, which would keep its graph until a garbage collection
        return finish(ends, result, error) or stopped


CustomBackwards = Watchers[Callable[[object], object], torch.autograd.graph.Node, tuple[object, ...]]
"""The watchers of these backwards. Each is called with the node and its arguments, and at the end with what the
backward returned, or None if it raised."""


def natives() -> dict[str, Callable[..., object]]:
    """Return PyTorch's own methods that run a backward, by name."""
    names = ("apply", "apply_boxed")
    return {name: getattr(BackwardCFunction, name) for name in names if hasattr(BackwardCFunction, name)}


def arm_backwards(customs: CustomBackwards, way: Way) -> None:
    """Call the watchers whenever the backward of a custom Function runs, the only Python code that autograd calls
    unasked."""
    for name, native in natives().items():
        way.patches.put(BackwardCFunction, name, _around(way, native, customs))


def of_node(way: Way, node: Callable[[], Any], name: str, customs: CustomBackwards) -> Callable[..., object]:
    """Return a function that runs the backward of one node and calls the watchers before and after it. It is to be set
    as the node's own attribute `name`.

    `node` returns the node. The function also works after everything else is disarmed.
    """

    def native(itself: torch.autograd.graph.Node, *args: object) -> object:
        return getattr(BackwardCFunction, name)(itself, *args)

    run = _around(way, passed_over(native), customs)
    return passed_over(lambda *args: run(node(), *args))


def _around(way: Way, native: Callable[..., object], customs: CustomBackwards) -> Callable[..., object]:
    """Return a method that runs a backward with `native` and calls the watchers before and after it."""

    def apply(self: torch.autograd.graph.Node, *args: object) -> object:
        result, ends = None, way.guarded(customs.begin, self, args)
        try:
            result = native(self, *args)
        finally:
            if ends:
                way.guarded(finish, ends, result)
        return result

    return passed_over(apply)


if TYPE_CHECKING:

    class _Ctx(torch.autograd.graph.Node):
        _forward_cls: type  # PyTorch's stubs lack it


KEPT = (torch.Tensor, list, tuple, dict, deque)
"""What a ctx may keep: tensors, and what may hold them."""
_COMPILED = "ApplyTemplate"
"""The class of the Function into which torch.compile makes one of the program's own. It keeps what that saves in a
variable, where nothing sees it (torch 2.13, _functorch/autograd_function.py; tests/observe/core/test_compiled.py)."""
OF_OPERATORS = "torch._library.autograd"
"""Where PyTorch makes the Function of an operator of the program's own, for `register_autograd` (torch 2.13;
tests/observe/detectors/test_stashes.py)."""
_DECLARATIONS = ("to_save", "saved_for_forward", "non_differentiable", "materialize_grads")
"""The attributes that the methods of a ctx set. PyTorch reads and checks these itself."""


@dataclass(slots=True, eq=False)
class ForwardCall:
    """A call of `apply` under way. `kept` holds where each tensor or container was put on the ctx, by name."""

    function: type
    args: tuple[object, ...]
    ctx: torch.autograd.graph.Node | None = None
    """None until the forward sets an attribute."""
    kept: dict[str, Place | None] = field(default_factory=dict)
    dirty: tuple[object, ...] = ()
    ends: list[Callable[[bool], object]] = field(default_factory=list)
    """Those to call at the end."""
    result: object = None
    """What the call returned; known at its end."""


class CustomForwards:
    """Those who are told of these forwards. Each is the entry of a way of seeing."""

    def __init__(self) -> None:
        self.begins: list[Callable[[ForwardCall], Callable[[bool], object] | None]] = []
        """Those to call before a forward. Each returns what is to be called at the end with True if the forward
        returned, False if it raised; what it returned, and what it kept on its ctx, is on the call then."""
        self.takes: list[Callable[[ForwardCall, bool], object]] = []
        """Those to call at the end of a forward that kept something on its ctx, with the same."""
        self.forgets: list[Callable[[torch.autograd.graph.Node, str], object]] = []
        """Those to call with the ctx and the name of an attribute that is set or deleted after the forward."""


class _Calls(threading.local):
    def __init__(self) -> None:
        self.under_way: list[ForwardCall] = []


def arm_forwards(forwards: CustomForwards, memory: Memory, not_seen: Callable[[str], None], way: Way) -> None:
    """See every call of a custom Function in threads that are watched, except of PyTorch's own Functions.

    It records what a call keeps on its ctx and what it declares dirty. From then on writes to what it returned as a
    view are remembered, whoever makes them: PyTorch may refuse the view for one.
    """
    native = vars(Function)["apply"]  # a Python classmethod; since torch 2.15 one written in C++
    calls = _Calls()

    def began(cls: type[Function], args: tuple[object, ...]) -> ForwardCall | None:
        is_of_torch = cls.__module__.startswith("torch.") and cls.__module__ != OF_OPERATORS
        if is_of_torch and cls.__name__ == _COMPILED:
            not_seen("what custom Functions keep in compiled regions")
        if not memory.thread.watched or is_of_torch or modes.transforms_active():
            return None
        call = ForwardCall(cls, args)
        call.ends = [end for begin in tuple(forwards.begins) if (end := begin(call)) is not None]
        return call

    def ended(call: ForwardCall, returned: bool) -> None:
        ends, call.ends = call.ends, []  # they refer to the call, which would keep what it holds
        for take in tuple(forwards.takes) if call.kept else ():
            take(call, returned)
        for end in ends:
            end(returned)
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

    def was_set(_: None, ctx: _Ctx, name: str, value: Any) -> None:
        under_way = calls.under_way
        if under_way and under_way[-1].function is ctx._forward_cls and under_way[-1].ctx in (None, ctx):
            call = under_way[-1]
            call.ctx = ctx
            if name == "dirty_tensors":
                call.dirty = value
            elif isinstance(value, KEPT) and name not in _DECLARATIONS:
                # A tuple never gets a tensor, as a list or a dict may.
                if not isinstance(value, tuple) or any(isinstance(part, KEPT) for part in value):
                    call.kept[name] = caller()
                elif call.kept:
                    call.kept.pop(name, None)
        else:
            forgotten(None, ctx, name)

    def forgotten(_: None, ctx: _Ctx, name: str) -> None:
        for forget in tuple(forwards.forgets):
            forget(ctx, name)

    way.after(BackwardCFunction, "__setattr__", was_set)
    way.after(BackwardCFunction, "__delattr__", forgotten)
