"""Keeps noclobber's kernels and hooks out of the graphs that `torch.jit.trace` and the older ONNX exporter record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch.jit

from noclobber.observe.core import threads
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import compile_guard, spare_key
from noclobber.observe.torch_api.frames import passed_over

C: ModuleType = torch._C
SAVES, WRITES = "saves while `torch.jit.trace` records", "writes while `torch.jit.trace` records"


def arm(context: Context, way: Way) -> None:
    """Leave operators and saves alone while `torch.jit.trace` records, until the recorder disarms.

    The tracer names values by the variables of the Python frames below an operator. A kernel or a hook in Python is
    such a frame, so that two recordings of one module would differ, and `torch.jit.trace` raises then (torch 2.13;
    test_traced.py). It also records, or warns of, what a hook asks a tensor.
    """
    private.lookup("jit._trace._trace_impl")
    private.lookup("_C._create_graph_by_tracing")
    for module, name in (
        (torch.jit._trace, "_trace_impl"),
        (torch.jit._trace, "trace_module"),
        (torch.jit, "trace_module"),
        (C, "_create_graph_by_tracing"),
    ):
        way.patches.put(module, name, _recording(getattr(module, name), context, way))


def _recording(native: Callable[..., object], context: Context, way: Way) -> Callable[..., object]:
    @functools.wraps(native)
    def recording(*args: object, **kwargs: object) -> object:
        if spare_key.key_is_set():  # else it is told already: `trace` of a module calls `trace_module`
            way.guarded(context.bus.not_seen, WRITES)
        withdrawn = way.guarded(threads.withdraw, context, SAVES)
        try:
            with spare_key.unlogged():
                return native(*args, **kwargs)
        finally:
            if withdrawn:
                way.guarded(threads.put_back, context, also_off=True)

    compile_guard.never_compile(passed_over(recording))
    return recording
