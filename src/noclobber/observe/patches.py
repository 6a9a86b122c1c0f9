"""Attributes of PyTorch and of threading that are replaced while noclobber is on, and put back as they were."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures.thread import _WorkItem
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from noclobber.observe import internals

_ABSENT = object()


class Patches:
    """Replaced attributes, undone in reverse order. Undoing leaves alone what somebody else has replaced since."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: type | ModuleType, name: str, value: Any) -> None:
        """Set `owner.name`, remembering what the owner itself held (nothing, where it only inherits the name)."""
        self._made.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        for owner, name, before, value in reversed(self._made):
            if vars(owner).get(name) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._made.clear()


def around_backward(patches: Patches, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the one door to the autograd engine: `backward()` and `grad()` both go through it."""
    patches.put(torch.autograd, "_engine_run_backward", wrap(internals.engine()))


def around_threads(patches: Patches, enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Run `enter` in every `threading.Thread` started from now on: dispatch keys and hooks are not inherited."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        enter()
        try:
            bootstrap(self)
        finally:
            leave()

    patches.put(threading.Thread, "_bootstrap_inner", _bootstrap_inner)


def around_waiting(patches: Patches, resumed: Callable[[], None]) -> None:
    """Run `resumed` in a thread that goes on after it waited for another, or begins a task of a pool."""
    wait: Callable[..., bool] = threading.Condition.wait
    run: Callable[..., None] = _WorkItem.run

    def waited(self: threading.Condition, timeout: float | None = None) -> bool:
        result = wait(self, timeout)
        resumed()
        return result

    def begun(self: Any, *args: Any) -> None:
        resumed()
        run(self, *args)

    patches.put(threading.Condition, "wait", functools.wraps(wait)(waited))
    patches.put(_WorkItem, "run", functools.wraps(run)(begun))


def on_new_operators(patches: Patches, rescan: Callable[[], None]) -> None:
    """Call `rescan` after a library defines operators or a shared object of operators is loaded."""

    def then_rescan(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            rescan()
            return result

        return wrapped

    patches.put(torch.library.Library, "define", then_rescan(torch.library.Library.define))
    patches.put(type(torch.ops), "load_library", then_rescan(type(torch.ops).load_library))


def around_disabled_hooks(patches: Patches, withdraw: Callable[[], None], put_back: Callable[[], None]) -> None:
    """Take our hooks away before torch.func or make_fx forbids hooks, and set them again afterwards."""
    autograd: Any = internals.C._autograd
    disable, enable = autograd._saved_tensors_hooks_disable, autograd._saved_tensors_hooks_enable

    def _saved_tensors_hooks_disable(*args: Any, **kwargs: Any) -> None:
        withdraw()
        disable(*args, **kwargs)

    def _saved_tensors_hooks_enable() -> None:
        enable()
        put_back()

    patches.put(autograd, "_saved_tensors_hooks_disable", _saved_tensors_hooks_disable)
    patches.put(autograd, "_saved_tensors_hooks_enable", _saved_tensors_hooks_enable)


def in_preserved_versions(patches: Patches, preserved: Callable[[int], None]) -> None:
    """Call `preserved` with 1 and -1 where a block begins and ends that puts version counters back as they were.

    DistributedDataParallel writes its buffers in one, FSDP2 its parameters (torch 2.13).
    """
    owner: Any = torch.autograd.grad_mode._unsafe_preserve_version_counter
    native_enter, native_exit = owner.__enter__, owner.__exit__

    def __enter__(self: Any) -> None:
        preserved(1)
        native_enter(self)

    def __exit__(self: Any, *exception: object) -> None:
        preserved(-1)
        native_exit(self, *exception)

    patches.put(owner, "__enter__", __enter__)
    patches.put(owner, "__exit__", __exit__)


def on_saved_tensors(patches: Patches, restore: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Pass what `ctx.saved_tensors` of a custom Function gives through `restore`."""
    native: Any = torch._C._FunctionBase.saved_tensors

    def saved_tensors(function: Any) -> tuple[Any, ...]:
        return restore(function, native.__get__(function))

    owner = torch.autograd.function.BackwardCFunction
    patches.put(owner, "saved_tensors", property(saved_tensors, doc=native.__doc__))


def around_custom_backward(patches: Patches, listening: Callable[[], AbstractContextManager[None]]) -> None:
    """Run the backward of every custom Function, the only Python that autograd calls unasked, inside `listening()`."""
    owner = torch.autograd.function.BackwardCFunction
    for name in ("apply", "apply_boxed"):
        if hasattr(owner, name):
            patches.put(owner, name, _inside(listening, getattr(owner, name)))


def _inside(listening: Callable[[], AbstractContextManager[None]], native: Any) -> Callable[..., Any]:
    def apply(self: Any, *args: Any) -> Any:
        with listening():
            return native(self, *args)

    return apply


_HOOKS = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
    (torch.nn.Module, "register_backward_hook"),
    (torch.nn.parallel.DistributedDataParallel, "register_comm_hook"),
)


def on_backward_hooks(patches: Patches, registered: Callable[[Any], None]) -> None:
    """Call `registered` with the code of its own that the program registers to run in the midst of a backward."""
    for owner, name in _HOOKS:
        patches.put(owner, name, _telling(vars(owner)[name], registered))


def _telling(method: Callable[..., Any], registered: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def register(*args: Any, **kwargs: Any) -> Any:
        registered(kwargs.get("hook", args[1] if len(args) > 1 else None))
        return method(*args, **kwargs)

    return register
