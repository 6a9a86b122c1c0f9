"""What watching by Python has cost in a run, and what the native part would leave of that."""

from __future__ import annotations

import os
import time

import torch

from noclobber.observe.arming import subscription
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.native.build import NotBuilt, require
from noclobber.observe.native.load import OFF
from noclobber.observe.torch_api.autograd import engine_state

LEAST, PART = 60.0, 0.2
"""Below so many seconds, and below this part of the time, nobody needs to build anything."""
OF_NATIVE = 0.15
"""What the native part takes of the time that Python takes: the median of the tiny steps in benchmarks/README.md."""
_NODES, _MOST = 500, 50e-6
"""Nodes of the graph that is measured, and seconds that watching one of them never takes."""


def in_words(seconds: float) -> str:
    """Say what Python's part was in a program of this thread that took so many seconds; empty if it was little.

    It is called while this thread is watched. The nodes of the graphs that the program has made are counted, and what
    one costs is measured.
    """
    nodes = engine_state.next_node()
    if nodes * _MOST < LEAST or CONTEXT.native is not None or not _may_be_built():
        return ""
    watched = _per_node()
    with subscription.apart():
        took = nodes * (watched - _per_node())
    if took < LEAST or took < PART * seconds:
        return ""
    return (
        f"noclobber's own Python took about {took:,.0f} s of {seconds:,.0f} s; "
        f"`noclobber doctor --build-native` brings that to about {took * OF_NATIVE:,.0f} s"
    )


def _may_be_built() -> bool:
    try:
        require()
    except NotBuilt:
        return False
    return os.environ.get(OFF, "") in ("", "0")


def _per_node() -> float:
    """Return the seconds that an operator with a save takes, and the read of that save: the least of some tries."""
    return min(_step() for _ in range(5)) / _NODES


def _step() -> float:
    """Save as forward does, and read as backward does, but call no backward: that would be counted."""
    with torch.inference_mode(False), torch.enable_grad():
        began = time.perf_counter()
        made = [torch.ones(8, dtype=torch.float32, device="cpu", requires_grad=True)]
        made += (made[-1].sin() for _ in range(_NODES))
        for one in made[1:]:
            one.grad_fn._saved_self  # type: ignore[union-attr]  # noqa: B018 - it is read
        return time.perf_counter() - began
