"""Replaces functions of PyTorch, `threading` and `warnings` so that they call noclobber; each patch has its way."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.dispatch import registry
from noclobber.observe.torch_api.frames import led_to

if TYPE_CHECKING:
    from torch.autograd.function import BackwardCFunction

Saved = tuple[torch.Tensor | None, ...]
"""What `ctx.saved_tensors` returns."""


def around_threads(way: Way, enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Run `enter` and `leave` in every `threading.Thread` that starts from now on: it inherits no keys and no hooks."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        way.guarded(enter)
        try:
            bootstrap(self)
        finally:
            way.guarded(leave)

    way.patches.put(threading.Thread, "_bootstrap_inner", _bootstrap_inner)


def around_waiting(way: Way, resumed: Callable[[], None]) -> None:
    """Run `resumed` in a thread that goes on after a `Condition.wait`, or begins a task of a thread pool."""
    wait: Callable[..., bool] = threading.Condition.wait
    task = concurrent.futures.thread._WorkItem
    run: Callable[..., None] = task.run

    def waited(self: threading.Condition, timeout: float | None = None) -> bool:
        result = wait(self, timeout)
        way.guarded(resumed)
        return result

    def begun(self: object, *args: object) -> None:
        way.guarded(resumed)
        run(self, *args)

    way.patches.put(threading.Condition, "wait", functools.wraps(wait)(waited))
    way.patches.put(task, "run", functools.wraps(run)(begun))


def on_warnings(way: Way) -> None:
    """Make a warning that blames a line of noclobber blame the line of the program that led there.

    A warning from C++ inside a wrapper blames the innermost Python frame. Since torch 2.15 an operator that a kernel
    calls collects its own warnings and blames the kernel (tests/observe/core/test_warnings.py). Filters that name a
    module also see noclobber's module: a warning that they drop there is not shown.
    """
    show: Callable[[warnings.WarningMessage], None] = warnings._showwarnmsg  # type: ignore[attr-defined]

    def _showwarnmsg(message: warnings.WarningMessage) -> None:
        blamed = way.guarded(led_to, message)
        if blamed is None:
            show(message)
            return
        names = blamed.f_globals
        warnings.warn_explicit(
            message.message,
            message.category,
            blamed.f_code.co_filename,
            blamed.f_lineno,
            names.get("__name__", "<string>"),
            names.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    way.patches.put(warnings, "_showwarnmsg", _showwarnmsg)


def on_new_operators(way: Way, look_at: Callable[[str], None], scan: Callable[[], None]) -> None:
    """Call `look_at` with the full name of an operator that was just defined, or that `torch.ops` is asked for the
    first time; it may come from an extension that was imported. Call `scan` after `torch.ops` has loaded a library."""
    library, all_of_one, ops = torch.library.Library, private.lookup("_ops._OpNamespace"), type(torch.ops)
    native_define: Callable[..., object] = library.define
    native_load: Callable[..., object] = ops.load_library
    native_getattr: Callable[[Any, str], object] = all_of_one.__getattr__

    def define(self: Any, schema: str, *args: object, **kwargs: object) -> object:
        result = native_define(self, schema, *args, **kwargs)
        way.guarded(lambda: look_at(f"{self.ns}::{schema.partition('(')[0].rpartition('::')[2].strip()}"))
        return result

    def load_library(self: object, *args: object, **kwargs: object) -> object:
        result = native_load(self, *args, **kwargs)
        way.guarded(scan)
        return result

    def look_at_all(found: object) -> None:
        for name in registry.names_of(found):
            look_at(name)

    def __getattr__(self: Any, name: str) -> object:
        found = native_getattr(self, name)
        way.guarded(look_at_all, found)
        return found

    way.patches.put(library, "define", functools.wraps(native_define)(define))
    way.patches.put(ops, "load_library", functools.wraps(native_load)(load_library))
    way.patches.put(all_of_one, "__getattr__", __getattr__)


def around_disabled_hooks(
    way: Way, withdraw: Callable[[object], None], put_back: Callable[[], None], ours: Callable[[], object]
) -> None:
    """Take our hooks away before torch.func, make_fx or the program forbids hooks, and set them again afterwards.

    `withdraw` is called with the message of the error that hooks then cause. `ours` returns the pair of the
    calling thread; None if it has none.
    """
    autograd = private.lookup("_C._autograd")
    disable = private.lookup("_C._autograd._saved_tensors_hooks_disable")
    enable = private.lookup("_C._autograd._saved_tensors_hooks_enable")

    def _saved_tensors_hooks_disable(*args: object, **kwargs: object) -> None:
        way.guarded(lambda: withdraw(args[0] if args else ""))
        if not way.on and (pair := ours()) is not None and hook_stack.top_hooks(True) == pair:
            hook_stack.pop_hooks()  # else PyTorch refuses
        disable(*args, **kwargs)

    def _saved_tensors_hooks_enable() -> None:
        enable()
        way.guarded(put_back)

    way.patches.put(autograd, "_saved_tensors_hooks_disable", _saved_tensors_hooks_disable)
    way.patches.put(autograd, "_saved_tensors_hooks_enable", _saved_tensors_hooks_enable)


def in_preserved_versions(way: Way, preserved: Callable[[int], None]) -> None:
    """Call `preserved(1)` when a block begins that restores version counters at its end, and `preserved(-1)` then.

    DistributedDataParallel writes its buffers in such a block, FSDP2 its parameters (torch 2.13).
    """
    owner = private.lookup("autograd.grad_mode._unsafe_preserve_version_counter")
    native_enter, native_exit = owner.__enter__, owner.__exit__

    def __enter__(self: object) -> None:
        way.guarded(preserved, 1)
        native_enter(self)

    def __exit__(self: object, *exception: object) -> None:
        way.guarded(preserved, -1)
        native_exit(self, *exception)

    way.patches.put(owner, "__enter__", __enter__)
    way.patches.put(owner, "__exit__", __exit__)


def on_saved_tensors(way: Way, restore: Callable[[BackwardCFunction, Saved], Saved]) -> None:
    """Pass the tensors that `ctx.saved_tensors` of a custom Function returns through `restore`."""
    native = private.lookup("_C._FunctionBase.saved_tensors")
    owner = private.lookup("autograd.function.BackwardCFunction")

    def saved_tensors(function: BackwardCFunction) -> Saved:
        unpacked: Saved = native.__get__(function)
        restored = way.guarded(restore, function, unpacked)
        return unpacked if restored is None else restored

    way.patches.put(owner, "saved_tensors", property(saved_tensors, doc=native.__doc__))


_HOOKS = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
    (torch.nn.Module, "register_backward_hook"),
    (torch.nn.parallel.DistributedDataParallel, "register_comm_hook"),
)


def on_backward_hooks(way: Way, registered: Callable[[Any], None]) -> None:
    """Call `registered` with each hook that the program registers to run during a backward."""
    for owner, name in _HOOKS:
        way.patches.put(owner, name, _telling(vars(owner)[name], way.entry(registered)))


def on_function_hooks(way: Way, registered: Callable[[Any], None]) -> None:
    """Call `registered` with the node of a custom Function when the program registers a hook to run after it."""
    owner = torch.autograd.function.BackwardCFunction
    method: Callable[..., object] = owner.register_hook
    told = way.entry(registered)

    def register_hook(node: object, *args: object, **kwargs: object) -> object:
        told(node)
        return method(node, *args, **kwargs)

    way.patches.put(owner, "register_hook", functools.wraps(method)(register_hook))


def _telling(method: Callable[..., object], registered: Callable[[object], object]) -> Callable[..., object]:
    @functools.wraps(method)
    def register(*args: object, **kwargs: object) -> object:
        registered(kwargs.get("hook", args[1] if len(args) > 1 else None))
        return method(*args, **kwargs)

    return register
