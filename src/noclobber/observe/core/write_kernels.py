"""The write log: Python kernels on a spare dispatch key for the overloads that mutate, fallthrough for all others."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noclobber.model.error import ClobberError
from noclobber.observe.core import custom_op_kernels
from noclobber.observe.torch_api import private


class Written(NamedTuple):
    """Which arguments an overload writes, as (position, name); whether it leaves the version counters alone; the
    position of the flag without which it writes nothing (batch norm's `training`); whether it cuts the tensor off its
    graph, which PyTorch notices by other means than versions; whether it writes though its schema does not say; and
    which argument it writes only once that has been saved, moving no version (late_fills.py)."""

    op: str
    arguments: tuple[tuple[int, str], ...]
    uncounted: bool
    flag: int | None = None
    detaches: bool = False
    undeclared: bool = False
    fills: tuple[int, str] | None = None

    @property
    def only_moves(self) -> bool:
        """Whether it changes where a tensor looks, and no bytes."""
        return self.op in ("data=", "swap_tensors") or self.op.partition("::")[2] in _MOVING

    @property
    def is_statistics(self) -> bool:
        """Whether these are the running statistics of batch norm, which training keeps and never reads back."""
        return self.op.partition("::")[2].startswith(_BATCH_NORM)

    @property
    def is_collective(self) -> bool:
        """Whether several processes take part: stopped in one, it leaves the others waiting for it."""
        return self.op.startswith(_COLLECTIVES)


class Sink(NamedTuple):
    """Where the kernels report. `before` is told of each written tensor and may raise ClobberError to stop the write;
    what it returns is called after the write, if not None. `lost` is told of any other exception of it. `filled` is
    told of what an operator has filled that the node of this number had saved. The others raise nothing."""

    before: Callable[[Written, torch.Tensor], Callable[[], object] | None]
    failed: Callable[[Written, tuple[Any, ...], dict[str, Any], RuntimeError], object]
    views: Callable[[str], object]
    lost: Callable[[Exception], None]
    filled: Callable[[torch.Tensor, int, bool], object]


_BATCH_NORM = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_update_stats",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""Their schemas do not say that they write running_mean and running_var (torch 2.13; test_coverage.py)."""
_UNCOUNTED = (
    "_fused_",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""Mutating overloads without a kernel that bumps the version (torch 2.13; tests/observe/core/test_coverage.py)."""


_MOVING = frozenset(
    """
    as_strided_ detach_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """.split()  # noqa: SIM905
)
"""What PyTorch tags `inplace_view` (torch 2.13; tests/observe/core/test_coverage.py)."""

_FILLS = {"aten::rrelu_with_noise": (1, "noise"), "aten::rrelu_with_noise_": (1, "noise")}
"""What an operator writes only once it has been saved (torch 2.13; tests/observe/core/test_filled.py)."""
_MADE_OF = {"aten::rrelu_": "aten::rrelu_with_noise_"}
"""Operators that are another one with an argument made for it, by which they are seen."""
_COLLECTIVES = ("c10d::", "_c10d_functional::")


def written_by(schema: Any) -> Written | None:
    """What an overload writes by its schema, or by the table above where the schema lies; None for nothing."""
    if schema.name in _MADE_OF:
        return None
    namespace, _, name = schema.name.partition("::")
    arguments: tuple[tuple[int, str], ...]
    if namespace == "aten" and name.startswith(_BATCH_NORM):
        arguments = tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.name.startswith("running_"))
        flag = next((i for i, a in enumerate(schema.arguments) if a.name in ("training", "train")), None)
        return Written(schema.name, arguments, True, flag) if arguments else None
    if namespace == "c10d" and name.endswith("_"):
        return Written(schema.name, ((0, schema.arguments[0].name),), True)
    arguments = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    if not arguments:
        return None
    uncounted = namespace == "_c10d_functional" or (namespace == "aten" and name.startswith(_UNCOUNTED))
    fills, op = _FILLS.get(schema.name), next((one for one in _MADE_OF if _MADE_OF[one] == schema.name), schema.name)
    return Written(op, arguments, uncounted, detaches=schema.name == "aten::detach_", fills=fills)


def makes_many_views(schema: Any) -> bool:
    """Whether an overload returns a list of views of its input (split, unbind, chunk ...)."""
    returns = schema.returns
    if schema.is_mutable or len(returns) != 1 or str(returns[0].type) != "List[Tensor]":
        return False
    return any(a.alias_info is not None and a.alias_info.after_set for a in schema.arguments)


def tensors(written: Written, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call of the overload writes, lists and nested lists flattened."""
    if written.flag is not None and not args[written.flag]:
        return
    for position, name in written.arguments:
        value = kwargs[name] if name in kwargs else args[position] if position < len(args) else None
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for one in value:
                if isinstance(one, torch.Tensor):
                    yield one
                elif isinstance(one, (list, tuple)):
                    yield from (inner for inner in one if isinstance(inner, torch.Tensor))


_registered: set[str] = set()
_libraries: dict[str, Any] = {}
kernels: list[tuple[str, str]] = []
"""What kernels are registered for: "aten" and "add_.Tensor"."""
_scanned: tuple[int, ...] = ()
_scanning = threading.Lock()
"""Held by the thread that registers kernels: another one that defines operators meanwhile is seen by the next look."""
_sink: Sink | None = None


def connect(sink: Sink) -> None:
    """Send what the kernels see to `sink`, registering kernels for every overload not seen before (0.2 s at first).

    The kernels stay registered for the life of the process. They are inert: a thread that has not called `enter` never
    reaches them, and PyTorch's dispatch is as fast as before (measured: +0 ns).
    """
    global _sink
    _sink = sink
    if not private.has_key():
        return
    if "_" not in _libraries:
        # Only once: it makes Python forget which warnings of the program it has shown.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = private.library("_")
            library.fallback(torch.library.fallthrough_kernel, private.KEY_NAME)
            private.let_through()
            _libraries["_"] = library
    rescan()


def sink() -> Sink | None:
    """Where the kernels report at present."""
    return _sink


def rescan() -> None:
    """Register kernels for the operators that were defined since the last look, if there may be any.

    Asking for all names takes 3 ms, which is dear for a `watch` around each step.
    """
    global _scanned
    now = private.operators_may_have_changed()
    if not private.has_key() or now == _scanned or not _scanning.acquire(blocking=False):
        return
    try:
        _scanned = now
        unknown = [name for name in private.operator_names() if name not in _registered]
        if not unknown:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in unknown:
                _registered.add(name)
                _register(name)
    finally:
        _scanning.release()


def _register(name: str) -> None:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        op = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        schema = op._schema
    except (AttributeError, RuntimeError):
        return
    written, compared = written_by(schema), False
    if written is not None:
        kernel = _write_kernel(op, written)
        if written.fills is not None:
            kernel = _filling(kernel, written)
    elif makes_many_views(schema):
        kernel = _views_kernel(op, schema.name)
    elif compared := custom_op_kernels.is_foreign(namespace):
        kernel = custom_op_kernels.kernel(op, schema.name)
    else:
        return
    library = _libraries.get(namespace)
    if library is None:
        library = _libraries[namespace] = private.library(namespace)
    library.impl(rest, kernel, private.KEY_NAME, with_keyset=compared)
    kernels.append((namespace, rest))


def _write_kernel(op: Any, written: Written) -> Callable[..., Any]:
    call, include, key = op._op, private.include, private.KEY
    only_first = written.arguments[0][0] == 0 and len(written.arguments) == 1
    # `Tensor.set_` alone asks no `__torch_function__`, which a call from Python does (torch 2.13; test_exotic.py).
    sight = private.plain if written.op == "aten::set_" else None
    by_name, may_be_numbers = op._overloadpacket._op, _may_be_numbers(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        sink, run, after = _sink, call, None
        for i in may_be_numbers:
            if i < len(args) and isinstance(args[i], _NUMBERS):
                run = by_name
        if sink is None:
            include(key, False)
            return run(*args, **kwargs)
        try:
            if only_first and isinstance(args[0], torch.Tensor):
                after = sink[0](written, args[0])
            else:
                for tensor in tensors(written, args, kwargs):
                    after = sink[0](written, tensor) or after
        except ClobberError:
            raise
        except Exception as failure:
            sink[3](failure)
        include(key, False)
        try:
            if sight is None:
                result = run(*args, **kwargs)
            else:
                with sight():
                    result = run(*args, **kwargs)
        except RuntimeError as error:
            sink.failed(written, args, kwargs, error)
            raise
        finally:
            include(key, True)
        if after is not None:
            after()
        return result

    return kernel


def _filling(kernel: Callable[..., Any], written: Written) -> Callable[..., Any]:
    position, name = written.fills or (0, "")

    def filling(*args: Any, **kwargs: Any) -> Any:
        node, result = private.next_node(), kernel(*args, **kwargs)
        if _sink is not None:
            _sink.filled(kwargs[name] if name in kwargs else args[position], node, len(written.arguments) == 1)
        return result

    return filling


_NUMBERS = (int, float, complex)


def _may_be_numbers(op: Any) -> tuple[int, ...]:
    """The positions of tensors that may come to a kernel as numbers which the overload does not take back.

    Inside PyTorch `2 ** t` calls `pow.Tensor_Tensor_out` with the 2 as a tensor that is marked as a number; to a Python
    kernel it comes as a plain number, which only a few overloads take back (torch 2.13;
    tests/observe/core/test_numbers.py). The others are called by their name, which finds the overload for a number.
    """
    if private.takes_numbers(op._schema.name):
        return ()
    arguments = enumerate(op._schema.arguments)
    return tuple(i for i, one in arguments if str(one.type) == "Tensor" and one.alias_info is None)


def _views_kernel(op: Any, name: str) -> Callable[..., Any]:
    call, include, key = op._op, private.include, private.KEY

    def kernel(*args: Any, **kwargs: Any) -> Any:
        sink = _sink
        if sink is None:
            include(key, False)
            return call(*args, **kwargs)
        sink.views(name)
        include(key, False)
        try:
            return call(*args, **kwargs)
        finally:
            include(key, True)

    return kernel


def disconnect() -> None:
    """Stop reporting. A thread that is still inside leaves by itself at its next write."""
    global _sink
    _sink = None


class WriteMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The stand-in where the dispatch key does not answer: sees the same writes, at two to three times the cost."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sink, written = _sink, None
        if sink is None:
            return func(*args, **kwargs)
        try:
            written = _written_cache(func)
        except Exception as failure:
            sink.lost(failure)
        if written is None:
            after = (
                custom_op_kernels.before(func._schema.name, args, kwargs)
                if custom_op_kernels.is_foreign(func.namespace)
                else None
            )
            result = func(*args, **kwargs)
            if after is not None:
                after()
            return result
        if isinstance(written, str):
            sink.views(written)
            return func(*args, **kwargs)
        after, filled = None, None if written.fills is None else args[written.fills[0]]
        try:
            for tensor in tensors(written, args, kwargs):
                if tensor is not filled:  # which is saved by now, as autograd comes before a mode
                    after = sink.before(written, tensor) or after
        except ClobberError:
            raise
        except Exception as failure:
            sink.lost(failure)
        try:
            with private.counting() if written.is_collective else nullcontext():
                result = func(*args, **kwargs)
        except RuntimeError as error:
            sink.failed(written, args, kwargs, error)
            raise
        if written.op.startswith("aten::_foreach_"):
            # Under a mode these bump no version (torch 2.13; test_the_stand_in_mode_sees_the_same), so PyTorch's check
            # would stay silent.
            torch.autograd.graph.increment_version(list(tensors(written, args, kwargs)))
        if filled is not None and torch.is_grad_enabled():
            sink.filled(filled, private.next_node() - 1, len(written.arguments) == 1)
        if after is not None:
            after()
        return result


def enter_mode() -> WriteMode:
    """Put the stand-in on this thread's mode stack."""
    mode: Any = WriteMode
    return cast(WriteMode, mode().__enter__())


def leave_mode(mode: WriteMode) -> None:
    """Take it off again."""
    leave: Any = mode.__exit__
    leave(None, None, None)


_cache: dict[Any, Written | str | None] = {}


def _written_cache(func: Any) -> Written | str | None:
    if func not in _cache:
        written = written_by(func._schema)
        _cache[func] = written or (func._schema.name if makes_many_views(func._schema) else None)
    return _cache[func]


@cache
def key_answers() -> bool:
    """Self-test: does a kernel on the spare key see an `add_` in this release?"""
    if not private.has_key():
        return False
    seen: list[str] = []
    before = _sink
    try:
        connect(Sink(lambda written, tensor: seen.append(written.op), *[lambda *_: None] * 4))
        private.set_key(True)
        try:
            torch.zeros(1).add_(1)
        finally:
            private.set_key(False)
    except Exception:
        return False
    finally:
        _restore(before)
    return "aten::add_" in seen


def _restore(sink: Sink | None) -> None:
    global _sink
    _sink = sink
