"""Notice regions of torch.compile, and keep noclobber's own code out of them.

torch.compile knows torch's functions by their identity, so none may be replaced while it looks at the program.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodDescriptorType, ModuleType
from typing import Any, cast

import torch

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches

_OURS = Path(__file__).parents[3].as_posix() + "/"
"""The folder of noclobber, as torch.compile lists folders that it leaves alone."""
_MODULES = ("torch._C._dynamo.eval_frame", "torch._dynamo.eval_frame", "torch._dynamo.decorators")
"""The modules in which torch.compile looks up `set_eval_frame`."""


Callback = Callable[[object], object]
Quick = Callable[[Callback, Callback, Callback], Callback]
"""Makes a function that calls the first function where it is called with None, and the third with what that returns if
it is not None; otherwise the second. It is called four times at each read of a checkpointed region."""


def around_regions(enter: Callable[[], object], leave: Callable[[], object], quick: Quick | None) -> Callable[[], None]:
    """Call `enter` when the first thread enters a compiled region and `leave` when the last thread has left. Return
    what ends that: torch.compile's module may have been imported meanwhile with our function in it."""
    # With it torch.compile begins (a callback, or False) and ends (None) to look at the frames of a thread.
    native: Callback = private.lookup("_C._dynamo.eval_frame.set_eval_frame")
    inside, here = set[int](), threading.get_ident

    def begins(callback: object) -> object:
        # None of noclobber's code may run once there is a callback: it would be compiled.
        if not inside:
            enter()
        inside.add(here())
        return native(callback)

    def ended(before: object) -> object:
        inside.discard(here())
        if not inside:
            leave()
        return before

    def set_eval_frame(callback: object) -> object:
        if callback is not None:
            return begins(callback)
        before = native(None)
        return before if before is None else ended(before)  # it is None while a frame is being compiled

    # The functions that they call may be looked at: skipping them would set the callback again at its end.
    for one in (begins, ended, set_eval_frame):
        never_compile(one, nor_its_calls=False)
    ours = set_eval_frame if quick is None else quick(native, begins, ended)
    _replace(native, ours)
    return lambda: _replace(ours, native)


def skip_ours(patches: Patches) -> Callable[[], None]:
    """Keep torch.compile from compiling noclobber's functions where the program's code leads to them. Return what ends
    that.

    It would compile each function that a hook or a kernel runs inside a compiled region, and warn of what it cannot
    compile (torch 2.13; tests/observe/core/test_compiled.py). Its modules are imported when it is first called.
    """
    lists: list[Any] = []
    over = False

    def skip() -> None:
        rules: Any = sys.modules.get("torch._dynamo.trace_rules")
        if rules is not None and not lists and not over:
            lists.append(rules)
            rules.SKIP_DIRS.append(_OURS)
            rules._recompile_re()

    def end() -> None:
        nonlocal over
        over = True  # the program may have kept the function that took the place of torch.compile
        for rules in lists:
            rules.SKIP_DIRS.remove(_OURS)
            rules._recompile_re()

    compiles = torch.compile

    @functools.wraps(compiles)
    def compile(*args: Any, **kwargs: Any) -> Any:
        compiled = compiles(*args, **kwargs)
        skip()
        return compiled

    skip()
    if not lists:
        patches.put(torch, "compile", compile)
    return end


class Frames:
    """Counts the frames of this process that run compiled. A backend that returns the graph that it was given, as
    `eager` does, compiles nothing: the operators of that graph are seen as all others."""

    def __init__(self) -> None:
        self._before = 0
        """The frames that were compiled while nothing was armed."""
        self._known = 0
        """What torch.compile had counted when this began or ended to look."""
        self._compiled = self._left = 0
        """What the backends were given since: graphs that they compiled, and graphs that they left as they are."""

    def arm(self, patches: Patches) -> None:
        """Begin to look at what backends return. torch.compile wraps each of them (torch 2.10 to 2.15;
        tests/observe/core/test_compiled.py)."""
        self._before += max(0, _frames() - self._known)
        self._known = _frames()
        for wrapper in (private.lookup("_TorchCompileWrapper"), private.lookup("_TorchCompileInductorWrapper")):
            patches.put(wrapper, "__call__", self._counting(wrapper.__call__))

    def disarm(self) -> None:
        """What is compiled from now on counts as compiled."""
        self._before, self._known = self.not_seen(), _frames()
        self._compiled = self._left = 0

    def not_seen(self) -> int:
        """Return how many frames run compiled code, which dispatches no operators."""
        by_others = 0 if self._compiled or self._left else _frames() - self._known
        return self._before + self._compiled + max(0, by_others)

    def _counting(self, native: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(native)
        def call(backend: object, graph: object, *args: object, **kwargs: object) -> object:
            made = native(backend, graph, *args, **kwargs)
            if getattr(made, "__self__", made) is graph:
                self._left += 1
            else:
                self._compiled += 1
            return made

        return call


FRAMES = Frames()


def _frames() -> int:
    """Return how many frames torch.compile has looked at in this process, also those that it left as they are."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("frames", {}).get("ok", 0))


def forget(ours: Callable[..., object], native: Callable[..., object]) -> None:
    """Clear what torch.compile has looked up of torch's functions, if it did so while `ours` was in place."""
    rules: ModuleType | None = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return
    functions, methods = rules.get_torch_obj_rule_map, rules.get_tensor_method
    is_method = isinstance(native, MethodDescriptorType)
    if functions.cache_info().currsize and ours in functions():
        functions.cache_clear()
    if is_method and methods.cache_info().currsize and native not in methods():
        methods.cache_clear()


def _replace(old: object, new: object) -> None:
    for name in _MODULES:
        names = vars(sys.modules.get(name, object))
        for key in [key for key, value in names.items() if value is old]:
            setattr(sys.modules[name], key, new)


_eval_frame: ModuleType = private.lookup("_C._dynamo.eval_frame")


def never_compile(function: Callable[..., object], *, nor_its_calls: bool = True) -> None:
    """Make torch.compile run a Python function as it is. With `nor_its_calls` the same holds for what it calls."""
    skip, usual = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
    strategy = _eval_frame._FrameExecStrategy(skip, skip if nor_its_calls else usual)
    _eval_frame.set_code_exec_strategy(cast(FunctionType, function).__code__, strategy)
