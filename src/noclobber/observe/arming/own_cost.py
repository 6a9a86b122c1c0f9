"""What watching by Python has cost in a run, and what the native part would leave of that."""

from __future__ import annotations

import os
import time
from statistics import median

import torch

from noclobber.observe.arming import recorder
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.records import taken
from noclobber.observe.native.build import NotBuilt, require
from noclobber.observe.native.load import OFF
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.witness.digests import clocked

LEAST, PART = 60.0, 0.2
"""Below so many seconds, and below this part of the time, nobody needs to build anything."""
OF_NATIVE = 0.15
"""What the native part takes of the time that Python takes: the median of the tiny steps in benchmarks/README.md. The
bytes of large tensors take it as long."""
_CELLS, _MOST = 70, 100e-6
"""Cells of the network that is measured, and seconds that watching one save or write hardly ever takes."""


def in_words(seconds: float) -> str:
    """Say what Python's part was in a program that took so many seconds; empty if it was little.

    It is called while this thread is watched. The saves and writes are counted, and what one costs is measured on a
    small network. The bytes of large tensors were clocked.
    """
    counted, bytes_took = taken[0], clocked[0]
    if counted * _MOST + bytes_took < LEAST or CONTEXT.native is not None or not _may_be_built():
        return ""
    rest = counted * _per_event()
    if (took := bytes_took + rest) < max(LEAST, PART * seconds):
        return ""
    return (
        f"noclobber's own Python took about {took:,.0f} s of {seconds:,.0f} s; "
        f"`noclobber doctor --build-native` brings that to about {bytes_took + rest * OF_NATIVE:,.0f} s"
    )


def _may_be_built() -> bool:
    try:
        require()
    except NotBuilt:
        return False
    return os.environ.get(OFF, "") in ("", "0")


def _per_event() -> float:
    """Return the seconds that a save, with its read, or a write takes in a small recurrent network."""
    before = taken[0]
    watched = [_step() for _ in range(9)]
    events = (taken[0] - before) / len(watched)
    with recorder.apart():
        return (median(watched) - median(_step() for _ in watched)) / events


def _step() -> float:
    """Run forward and backward, but not as a backward call of the program: that would be counted."""
    with torch.inference_mode(False), torch.enable_grad():
        began = time.thread_time()
        weight, first = (torch.ones(n, 8, dtype=torch.float32, device="cpu", requires_grad=True) for n in (32, 4))
        state = first, first
        for _ in range(_CELLS):
            state = torch.lstm_cell(first, state, weight, weight)
        engine_state.run(state[0].sum(), first)
        return time.thread_time() - began
