"""The modes of a thread, the program's and PyTorch's own, and how noclobber's operators run outside of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch.spare_key import unlogged

plain: Callable[[], AbstractContextManager[None]] = private.lookup("_C.DisableTorchFunction")
"""Hides what noclobber asks of tensors from the program's `__torch_function__` modes."""
transforms_active: Callable[[], bool] = private.lookup("_C._are_functorch_transforms_active")
"""Returns True while this thread is inside torch.func."""
function_modes: Callable[[], int] = private.lookup("_C._len_torch_function_stack")
"""Returns how many `__torch_function__` modes the program has entered in this thread."""
functions_enabled: Callable[[], bool] = private.lookup("_C._is_torch_function_enabled")
"""Returns False inside the `__torch_function__` of a subclass that goes on to PyTorch's own, and inside `plain`."""
set_grad: Callable[[bool], None] = private.lookup("_C._set_grad_enabled")
"""Does what `torch.no_grad` does at its begin and end, which takes five times as long (torch 2.13)."""
_modes_on_stack: Callable[[], int] = private.lookup("_C._len_torch_dispatch_stack")
_without_modes: Callable[[], AbstractContextManager[object]] = private.lookup(
    "utils._python_dispatch._disable_current_modes"
)


def no_modes() -> AbstractContextManager[object]:
    """Hide noclobber's own operators from the program's dispatch modes: selective checkpoints count operators."""
    return _without_modes() if _modes_on_stack() else nullcontext()


@contextmanager
def trial() -> Iterator[None]:
    """Let a trial of noclobber's own make a graph, outside of the write log and unseen by the program's modes."""
    with torch.inference_mode(False), torch.enable_grad(), unlogged(), no_modes(), plain():
        yield


def push_mode(mode: object) -> None:
    """Put a mode on this thread's stack, for whoever restores the stack to take off."""
    private.lookup("_C._push_on_torch_dispatch_stack")(mode)


@contextmanager
def aside() -> Iterator[None]:
    """Run noclobber's own operators outside of the write log and the graph, unseen by the program's modes.

    They run outside of inference mode too: a tensor made there has no version counter, and cannot be written outside
    of that mode (torch 2.13; tests/observe/core/test_inference.py).
    """
    usual = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
    with plain(), no_modes(), usual, unlogged():
        grad = torch.is_grad_enabled()
        try:
            set_grad(False)
            yield
        finally:
            set_grad(grad)
