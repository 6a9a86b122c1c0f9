"""The nodes that a failed backward leaves in the engine's queue: they go while Python can still free their saves."""

from __future__ import annotations

import atexit
from functools import cache, partial

import torch

from noclobber.observe.core.context import Context
from noclobber.observe.torch_api.autograd import engine_state

CRASHES = torch.__version__ >= "2.14"
"""True if such a node may end the process with a crash: on 2.15, and not on 2.13. 2.14 was not tried."""


@cache
def end_at_exit(context: Context) -> None:
    """Let the exiting thread drop such nodes when Python exits, if any save with noclobber's hooks is alive then.

    A backward that raises leaves the nodes that were ready to run in the queue of its thread, until the next backward
    of that thread. The queue of the main thread is destroyed after Python has ended. torch 2.15 takes the GIL to free
    a save with hooks, and the process crashes then; torch 2.13 does not free it
    (tests/observe/transparent/test_unfinished.py).
    """
    if CRASHES:
        atexit.register(partial(_end, context))


def _end(context: Context) -> None:
    context.core.guarded(lambda: engine_state.empty_queue() if context.live.any() else None)
