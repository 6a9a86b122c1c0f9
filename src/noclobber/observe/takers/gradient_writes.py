"""Finds code that writes into a gradient during a backward while others still get, or already got, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch.autograd.graph import Node

from noclobber.model.seen.events import Write
from noclobber.model.seen.silent import GradientWrite
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.calls.backward_calls import End
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.records import Backward, here, reading
from noclobber.observe.core.seen.sites import KINDS, USER, Place, caller, place_of, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.takers.gradient_consumers import ENGINE, Deliveries, Spoil, is_of_the_engine
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.frames import outward
from noclobber.observe.torch_api.tensors import storages, tensor_state

_HOOKS = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
    (torch.nn.Module, "register_backward_hook"),
    (torch.nn.parallel.DistributedDataParallel, "register_comm_hook"),
)
"""What registers a hook to run during a backward."""


def arm(context: Context, way: Way) -> None:
    """See the hooks that the program registers. Where saves are watched, check each write of Python code in a backward
    too."""
    gradients = Gradients(context, way)
    for owner, name in _HOOKS:
        way.before(owner, name, gradients.registered)
    if context.watching:
        context.calls.watch(way, gradients.given_again, among=gradients.given)
        context.calls.with_python.watch(way, gradients.begin)
        context.customs.watch(way, gradients.function_begins)
        way.before(torch.autograd.function.BackwardCFunction, "register_hook", gradients.function_hooked)


class Gradients:
    """The writes into gradients of all backward calls. Each call has its own `Deliveries`."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._looking = way.entry(self._look)
        self._places: dict[CodeType, Place | None] = {}
        self._hooked: WeakSet[Node] = WeakSet()
        """The nodes of Functions on which the program registered hooks that run after them."""
        self.given: list[Spoil] = []
        """Overwritten gradients that the program itself had passed to the backward."""

    def registered(self, _: object, *args: object, **kwargs: object) -> None:
        """Record where the program registers a hook that will run during a backward.

        The engine has given its threads the keys of a call that is under way. So nobody sees what such a hook writes in
        a call that began without hooks.
        """
        self._context.python_in_backward = True
        if (call := here()) is not None and call.quiet:
            self._context.bus.not_seen("hooks in the backward call that registered them")
        hook = kwargs.get("hook", args[0] if args else None)
        function = getattr(hook, "__func__", getattr(hook, "func", hook))
        called = vars(type(function)).get("__call__")
        code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            self._places[code] = caller()

    def function_hooked(self, node: Node, *_: object, **__: object) -> None:
        """Record that the program registers a hook on the node of a Function, which will run after the node."""
        self._hooked.add(node)

    def begin(self, call: Backward) -> End:
        """Check all writes until this backward has ended. Returns what to call then.

        Without hooks only Functions run Python code, and `function_begins` looks at the gradients that each is given.
        """
        context = self._context
        call.deliveries = run = Deliveries(call, self._way, context.bus.notice, self._hooked)
        attends = context.python_in_backward
        if attends:
            context.attend(self._looking)

        def ended(result: object, error: BaseException | None) -> None:
            if attends:
                context.ignore(self._looking)
            run.stop()
            if run.spoils and error is None:
                self._finish(run, result)

        return ended

    def _under_way(self) -> list[Deliveries]:
        """Return the deliveries of the backward calls that this thread runs or works for, innermost first."""
        call, under_way = here(), []
        while call is not None and call.deliveries is not None:
            under_way.append(call.deliveries)
            call = call.outer
        return under_way

    def function_begins(self, function: Node, args: tuple[object, ...]) -> Callable[[object], None]:
        """Return what to call when the backward of a custom Function has ended.

        A custom Function may return the gradient that it was given: others then get that gradient rightly.
        """
        if keys := _keys(args):
            self._context.attend(self._looking, keys)

        def ran(result: object) -> None:
            if keys:
                self._context.ignore(self._looking, keys)
            for run in self._under_way() if result is not None else ():
                if run.spoils:
                    run.returned(function, result)

        return ran

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        """Check one write: the quick tests, which most writes in a backward do not pass."""
        if not is_of_the_engine(frame) and (node := engine_state.current_node()) is not None and here() is not None:
            self._written(written, tensor, key, frame, node)

    def _written(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType, node: Any) -> None:
        """Record a write if it goes to a gradient that the engine gave to `node`."""
        frames = list(takewhile(lambda above: above.f_code.co_name != ENGINE, outward(frame)))
        given = next(
            (argument for call in _called(frames) for argument in _arguments(call) if _is_on(argument, key)), None
        )
        if given is None and getattr(getattr(node, "_forward_cls", None), "boxed_grads_call", False):
            given = tensor  # the gradient came in a list, which the Function may have emptied by now
        if given is None:
            return
        by: Literal["function", "hook"] = (
            "function" if any(_runs_function(above.f_code) for above in frames) else "hook"
        )
        user = next((above for above in reversed(frames) if KINDS.get(above.f_code.co_filename) == USER), frame)
        name = node._forward_cls.__name__ if by == "function" else user.f_code.co_name
        event = GradientWrite(
            Write(
                written.op,
                site_of(place_of(frame)),
                via="operator" if tensor_state.version_of(tensor) == tensor_state.version_of(given) else "data",
                version_before=tensor_state.version_of(tensor),
                in_forward=False,
            ),
            by,
            name,
            clobbers.read_of(reading()),
            site_of(next((self._places[above.f_code] for above in frames if above.f_code in self._places), None)),
        )
        spoil = Spoil(tensor, node, event, clobbers.later_of(tensor))
        for run in self._under_way():
            run.expect(spoil)

    def _finish(self, run: Deliveries, result: object) -> None:
        """Report what a backward leaves. Keep the overwritten gradients that the program passed in: it may pass them
        again."""
        run.finish(result)
        self.given += [spoil for spoil in run.spoils if spoil.is_on_any(run.given) and spoil.keep()]

    def given_again(self, call: Backward) -> None:
        """Report each gradient that the program passes to a backward after an earlier backward overwrote it."""
        again = [spoil for spoil in self.given if spoil.is_on_any(call.gradients) and spoil.is_as_kept()]
        self.given[:] = [spoil for spoil in self.given if spoil not in again and not spoil.handed.storage.expired()]
        for spoil in again:
            spoil.tell(None, self._context.bus.notice)


def _called(frames: list[FrameType]) -> list[FrameType]:
    """Return the frame that the engine called, and the frame of a module's hook that this one calls.

    For a module's hook PyTorch keeps the gradients of the module's outputs. Frames further in are left out: their
    arguments may be tensors that the code has made itself.
    """
    hooks = torch.utils.hooks.__file__
    inside = next((called for called in reversed(frames) if called.f_code.co_filename != hooks), None)
    return frames[-1:] if frames[-1].f_code.co_filename != hooks or inside is None else [frames[-1], inside]


def _runs_function(code: CodeType) -> bool:
    return code.co_name in ("apply", "apply_boxed") and code.co_filename == torch.autograd.function.__file__


def _arguments(frame: FrameType) -> Iterator[torch.Tensor]:
    """Return the tensors that a call was given, also those in a list or tuple."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    return tensor_state.tensors_in(*(frame.f_locals.get(name) for name in code.co_varnames[:count]))


def _keys(args: tuple[object, ...]) -> list[int]:
    """Return the storages of the gradients that a Function is given and that anybody else holds too. A boxed Function
    gets them in a list."""
    shared = [
        one
        for one in tensor_state.tensors_in(args)
        if tensor_state.use_count(one) > 1 or not storages.is_only_holder(one)
    ]
    keys = {storages.storage_key(one) for one in shared}
    return [key for key in keys if key is not None]


def _is_on(tensor: torch.Tensor, key: int) -> bool:
    return storages.storage_key(tensor) == key
