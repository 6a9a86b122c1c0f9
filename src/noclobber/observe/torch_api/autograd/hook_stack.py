"""A thread's stack of saved-tensor hooks, and how many hooks of any kind the program has registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.hooks import RemovableHandle

from noclobber.observe.torch_api import private

Hook = Callable[..., object]
Pair = tuple[Hook, Hook]
"""A pack hook and its unpack hook."""
push_hooks: Callable[[Hook, Hook], None] = private.lookup("_C._autograd._push_saved_tensors_default_hooks")
pop_hooks: Callable[[], None] = private.lookup("_C._autograd._pop_saved_tensors_default_hooks")
top_hooks: Callable[[bool], Any] = private.lookup("_C._autograd._top_saved_tensors_default_hooks")
"""Returns the uppermost pair of saved-tensor hooks of this thread, or None without one."""


def replace_hooks(these: Callable[[Pair], bool], by: Pair | None = None) -> None:
    """Remove the uppermost pair for which `these` returns True from this thread's stack of hooks; put `by` in its
    place. The pair may lie below others, which stay."""
    above = []
    while (top := top_hooks(True)) is not None:
        pop_hooks()
        if these(top):
            break
        above.append(top)
    above += [by] if by is not None else []
    for pair in reversed(above):
        push_hooks(*pair)


_own_hooks = 0

Function = TypeVar("Function")

Registered = TypeVar("Registered")


def hook(register: Callable[[Function], Registered], function: Function) -> Registered:
    """Register one of noclobber's own hooks and return its handle.

    These are counted: all other hooks of the process are the program's.
    """
    global _own_hooks
    handle = register(function)
    _own_hooks += 1
    return handle


def program_hooks() -> int:
    """Return how many hooks the program has ever registered, of any kind, also on nodes, which no patch could see."""
    return int(RemovableHandle.next_id) - _own_hooks


def program_has_hooks() -> bool:
    """Return True if the program ever registered a hook of any kind."""
    return bool(RemovableHandle.next_id != _own_hooks)
