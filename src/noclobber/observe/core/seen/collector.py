"""Takes objects of noclobber's out of the garbage collector's sight, where so many live that it would stop for long."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

MANY = 256
"""Saves alive at a sweep of the live table, or writes that are remembered. With fewer, the collector costs less than to
take them out of its sight."""

leave_out: Callable[[object], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("PyObject_GC_UnTrack", ctypes.pythonapi)
)
"""Keep an object from the collector, which then visits it no more; it is still freed with its last reference.

Only for an object of a type that the collector visits, as for others this writes into foreign memory. And only for one
that can be in no cycle: a record leads to no tensor, and autograd holds every handle from C++, where the collector does
not see it.

The collector visits all objects of the process whenever a quarter as many as there are have lived for a while. With the
saves of LSTMCell x 200 that is every 11 steps, and takes 150 ms (CPython 3.11; benchmarks/)."""
