"""Code in a backward that writes into a gradient: who else still gets those bytes, or has got them already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

import torch

from noclobber.model.events import Read, Write
from noclobber.model.silent import GradientWrite
from noclobber.model.source import Owner, owner_of
from noclobber.observe.core import interpose
from noclobber.observe.core.backward_calls import End
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward, here, reading
from noclobber.observe.core.sites import KINDS, USER, Place, caller, place_of, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.detectors import gradient_consumers
from noclobber.observe.detectors.gradient_consumers import Deliveries, Spoil
from noclobber.observe.torch_api import private, self_tests

_ENGINE = "_engine_run_backward"
_ALONE = {"function": 1, "hook": 2, "module": 1}
"""The use count of a gradient that nobody else gets: Python's own reference, and in a hook the engine's as well; the
hooks of a module keep it and are called later (torch 2.10 to 2.15; tests/observe/detectors/test_gradient_writes.py)."""
_OURS = 2
"""The use count of what nobody but the writing code and the call that writes holds."""


def arm(context: Context, way: Way) -> None:
    """Learn of hooks; where saves are watched, look at every write that Python code makes in a backward."""
    if context.watching:
        self_tests.of_use_counts()
    gradients = Gradients(context, way)
    interpose.on_backward_hooks(way, gradients.registered)
    context.calls.watch(way, gradients.begin)
    if context.watching:
        context.customs.watch(way, gradients.function_begins)
        interpose.on_function_hooks(way, gradients.function_hooked)


class Gradients:
    """What is written into the gradients of backward calls, each of which has its own deliveries."""

    def __init__(self, context: Context, way: Way) -> None:
        self._context, self._way = context, way
        self._looking = way.entry(self._look)
        self._places: dict[CodeType, Place | None] = {}
        self._hooked: WeakSet[Any] = WeakSet()
        """The nodes of Functions on which the program registered hooks that get what they have made."""
        self._given: list[Spoil] = []
        """Gradients that the program passed to a backward and that were overwritten in it."""

    def registered(self, hook: Any) -> None:
        """The program registers a hook that will run in the midst of a backward."""
        self._context.python_in_backward = True
        function = getattr(hook, "__func__", getattr(hook, "func", hook))
        called = vars(type(function)).get("__call__")
        code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            self._places[code] = caller(2)

    def function_hooked(self, node: Any) -> None:
        """The program registers a hook on the node of a Function, to get what that has made."""
        self._hooked.add(node)

    def begin(self, call: Backward) -> End | None:
        """A backward begins: listen to all writes until it has ended."""
        context = self._context
        if private.program_has_hooks():
            # It may have been registered by a way that is not replaced (Node.register_hook), or before this began.
            context.python_in_backward = True
        if not context.watching:
            return None
        if self._given:
            self._given_again(call.gradients)
        call.deliveries = run = Deliveries(call, self._way)
        context.attend(self._looking)

        def ended(result: Any, error: BaseException | None) -> None:
            context.ignore(self._looking)
            run.stop()
            if run.spoils and error is None:
                self._finish(run, result)

        return ended

    def _under_way(self) -> list[Deliveries]:
        """The backward calls that this thread runs or works for, innermost first."""
        call, found = here(), []
        while call is not None and call.deliveries is not None:
            found.append(call.deliveries)
            call = call.outer
        return found

    def function_begins(self, function: Any, args: tuple[Any, ...]) -> Callable[[Any], None]:
        """What a custom Function returns may be what it was given: then that is how others come by it."""

        let_go = gradient_consumers.hold(args) if gradient_consumers.HOLDS else None

        def ran(result: Any) -> None:
            try:
                for run in self._under_way() if result is not None else ():
                    if run.spoils:
                        run.ran(function, args, result)
            finally:
                if let_go is not None:
                    let_go()

        return ran

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        if _is_of_the_engine(frame.f_code) or (node := private.current_node()) is None:
            return
        if self._context.by_key and private.use_count(tensor) <= _OURS and gradient_consumers.holders(tensor) == 1:
            return
        if here() is not None:
            self._written(written, tensor, key, frame, node)

    def _written(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType, node: Any) -> None:
        context, frames = self._context, list(_frames(frame))
        given = next((one for each in _called(frames) for one in _arguments(each) if _is_on(one, key)), None)
        if given is None and getattr(getattr(node, "_forward_cls", None), "boxed_grads_call", False):
            given = tensor  # the list that it came in may be empty by now
        if given is None:
            return
        by = "function" if any(_runs_function(one.f_code) for one in frames) else "hook"
        kind = "module" if any(one.f_code.co_filename == torch.utils.hooks.__file__ for one in frames) else by
        # The call that writes holds what it is given at least once.
        alone = gradient_consumers.uses(given) <= _ALONE[kind] + (tensor is given and context.by_key)
        if alone and gradient_consumers.holders(given) <= 1 + (tensor is not given):
            return
        user = next((one for one in reversed(frames) if KINDS.get(one.f_code.co_filename) == USER), frame)
        name = node._forward_cls.__name__ if by == "function" else user.f_code.co_name
        event = GradientWrite(
            Write(
                written.op,
                site_of(place_of(frame)),
                via="operator" if private.version_of(tensor) == private.version_of(given) else "data",
                version_before=private.version_of(tensor),
                tensor=clobbers.tensor_of(tensor, key),
                in_forward=False,
            ),
            "function" if by == "function" else "hook",
            name,
            Read("", site_of(reading().place), clobbers.call_of(reading())),
            site_of(next((self._places[one.f_code] for one in frames if one.f_code in self._places), None)),
        )
        spoil = Spoil(tensor, given, node, event)
        under_way = self._under_way()
        passed = {id(one): one for run in under_way for one in run.given or ()}
        spoil.passed = sum(map(spoil.is_on, passed.values()))
        for run in under_way:
            run.expect(spoil, context.bus.notice, self._hooked)

    def _finish(self, run: Deliveries, result: Any) -> None:
        run.finish(result)
        self._given += [spoil for spoil in run.spoils if spoil.is_on_any(run.given) and spoil.keep()]

    def _given_again(self, gradients: Any) -> None:
        """A gradient that a former backward overwrote is passed to another one."""
        again = [spoil for spoil in self._given if spoil.is_on_any(gradients) and spoil.is_as_kept()]
        self._given = [spoil for spoil in self._given if spoil not in again and not spoil.storage.expired()]
        for spoil in again:
            spoil.tell("", self._context.bus.notice)


def _is_of_the_engine(code: CodeType) -> bool:
    """Whether the engine writes itself: in its own threads noclobber's kernel is the outermost frame there is."""
    return code.co_name == _ENGINE or owner_of(code.co_filename) is Owner.NOCLOBBER


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and frame.f_code.co_name != _ENGINE:
        yield frame
        frame = frame.f_back


def _called(frames: list[FrameType]) -> list[FrameType]:
    """What the engine called, and the hook of a module that this calls: PyTorch keeps what the module's outputs got.

    Arguments of calls further in may be tensors that the code has made itself.
    """
    hooks = torch.utils.hooks.__file__
    inside = next((one for one in reversed(frames) if one.f_code.co_filename != hooks), None)
    return frames[-1:] if frames[-1].f_code.co_filename != hooks or inside is None else [frames[-1], inside]


def _runs_function(code: CodeType) -> bool:
    return code.co_name in ("apply", "apply_boxed") and code.co_filename == torch.autograd.function.__file__


def _arguments(frame: FrameType) -> Iterator[torch.Tensor]:
    """The tensors that a call was given, those in a list or tuple as well."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, torch.Tensor):
                yield one


def _is_on(tensor: torch.Tensor, key: int) -> bool:
    return private.storage_key(tensor) == key
