"""Regions of torch.compile: it knows torch's functions by what they are, so while it looks none may be replaced."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import MethodDescriptorType
from typing import Any

from noclobber.observe.torch_api import private

_MODULES = ("torch._C._dynamo.eval_frame", "torch._dynamo.eval_frame", "torch._dynamo.decorators")
"""Where the function is looked up by which torch.compile begins and ends to look at frames of the calling thread."""


class Regions:
    """Calls `enter` when the first thread enters a compiled region and `leave` when the last one has left."""

    def __init__(self, enter: Callable[[], object], leave: Callable[[], object]) -> None:
        self._enter = enter
        self._leave = leave
        self._inside: set[int] = set()
        self._native: Any = private.lookup("_C._dynamo.eval_frame.set_eval_frame")
        """By which torch.compile begins (a callback, or False) and ends (None) to look at the frames of a thread."""
        self._ours: Any = None

    def listen(self) -> None:
        """Begin."""
        native, inside, enter, leave = self._native, self._inside, self._enter, self._leave
        here = threading.get_ident

        def set_eval_frame(callback: Any) -> Any:
            # Nothing of ours may run once there is a callback: it would be compiled.
            if callback is not None:
                if not inside:
                    enter()
                inside.add(here())
                return native(callback)
            before = native(None)
            if before is not None:  # it is while a frame is being compiled
                inside.discard(here())
                if not inside:
                    leave()
            return before

        # What it calls, too, would have the callback put back at its end.
        private.never_compile(set_eval_frame, nor_its_calls=False)
        self._ours = set_eval_frame
        _replace(native, set_eval_frame)

    def stop(self) -> None:
        """End. The module that torch.compile lives in may have been imported meanwhile, and have taken ours along."""
        _replace(self._ours, self._native)


def forget(ours: Callable[..., Any], native: Callable[..., Any]) -> None:
    """Have torch.compile look up anew what it knows of torch's functions, if it did so while `ours` was in place."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return
    functions, methods = rules.get_torch_obj_rule_map, rules.get_tensor_method
    is_method = isinstance(native, MethodDescriptorType)
    if functions.cache_info().currsize and ours in functions():
        functions.cache_clear()
    if is_method and methods.cache_info().currsize and native not in methods():
        methods.cache_clear()


def _replace(one: Any, other: Any) -> None:
    for name in _MODULES:
        names = vars(sys.modules.get(name, object))
        for key in [key for key, value in names.items() if value is one]:
            setattr(sys.modules[name], key, other)
