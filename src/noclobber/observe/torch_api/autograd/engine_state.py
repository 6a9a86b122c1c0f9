"""What the autograd engine says of a thread: the next node, the node and the call that run, the end of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import Node

from noclobber.observe.torch_api import before_2_12, private
from noclobber.observe.torch_api.dispatch import modes

next_node: Callable[[], int] = private.lookup("_C._autograd._get_sequence_nr")
"""Returns the number that the next autograd node of this thread will get (`Node::sequence_nr`, thread-local)."""
current_node: Callable[[], Node | None] = private.lookup("_C._current_autograd_node")
"""Returns the node whose backward is running in this thread, None outside of one. It is set in an unpack hook."""
_put_aside: Callable[[str, object], None] = private.lookup("_C._stash_obj_in_tls")
_remove: Callable[[str], None] | None = getattr(torch._C, "_remove_obj_from_tls", None)
_is_aside: Callable[[str], bool] = private.lookup("_C._is_key_in_tls")
_aside: Callable[[str], object] = private.lookup("_C._get_obj_in_tls")


def engine() -> Callable[..., object]:
    """Return the function through which torch.autograd makes every call of the autograd engine."""
    door: Callable[..., object] = private.lookup("autograd._engine_run_backward")
    return door


CALL = "noclobber: call"
"""Short, as the engine copies it for every node: C++ allocates no memory for 15 characters."""


def backward_call() -> Any:
    """Return what `set_backward_call` set for the call that this thread runs or works for; None outside of one.

    The engine copies the state of the calling thread into each thread that runs nodes of the call: the threads of
    devices, and those that take over where backward calls are nested deeply (torch 2.13;
    tests/observe/core/test_threads.py).
    """
    return _aside(CALL) if _is_aside(CALL) else None


def set_backward_call(call: object) -> None:
    """Set the backward call that this thread makes; None for no call.

    The entry goes then: PyTorch frees what a thread has left after Python has let go of it, and needs the interpreter
    for that. At the end of the program this waits for ever, or ends in SIGABRT (torch 2.13). torch 2.12 and older
    cannot remove it.
    """
    if call is None and _remove is not None:
        _remove(CALL)
        return
    before_2_12.count(call, _put_aside)
    _put_aside(CALL, call)


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call a function when the backward that this thread runs has ended and has freed what is not retained."""
    private.lookup("autograd.Variable._execution_engine").queue_callback(function)


def empty_queue() -> None:
    """Make the engine drop the nodes that failed backward calls of this thread have left in its queue.

    Any backward does: the engine takes such nodes first, and drops them without running them.
    """
    with modes.aside():
        leaf = torch.zeros((), device="cpu", requires_grad=True)
        run(leaf, leaf)


def run(output: torch.Tensor, leaf: torch.Tensor) -> None:
    """Run the engine for a gradient that nobody gets: below what sees each backward call of the program."""
    engine = private.lookup("autograd.Variable._execution_engine")
    engine.run_backward((output,), (torch.zeros_like(output),), False, False, (leaf,), allow_unreachable=True)
