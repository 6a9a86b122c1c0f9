"""The kernels: Python functions that run in place of the operators that write, and tell a sink of each write."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from noclobber.model.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core import running_statistics
from noclobber.observe.core.quicker import NUMBERS, Quick, quicker
from noclobber.observe.core.written import Written, tensors
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from torch._ops import OpOverload

Kernel = Callable[..., object]
After = Callable[[], object]
"""Called after a write."""


class Sink(NamedTuple):
    """What the kernels call. Only `before` may raise."""

    before: Callable[[Written, torch.Tensor], After | None]
    """Called before each written tensor; ClobberError stops the write. What it returns, if not None, runs after it."""
    failed: Callable[[Written, tuple[object, ...], dict[str, object], RuntimeError], object]
    """Called with the arguments when the operator itself raises RuntimeError."""
    views: Callable[[str], object]
    """Called with the name of an operator that is about to return several views."""
    lost: Callable[[Exception], None]
    """Called with any other exception of `before`."""
    filled: Callable[[torch.Tensor, int, bool], object]
    """Called with a tensor filled after its save, its node's number, and whether the node saves nothing afterwards."""
    all_writes: bool = True
    """Whether `before` is also called where a write moves no version: for operators that count none, and inside the
    kernels of others."""
    contents: bool = False
    """Whether the bytes of saves are compared."""
    own: Callable[[Written, tuple[object, ...], dict[str, object]], After | None] | None = None
    """Called with the arguments after `before`, where bytes are preserved. What it returns, if not None, runs after the
    operator."""


_sink: Sink | None = None


def sink() -> Sink | None:
    """Return what the kernels call at present; None if nothing is connected."""
    return _sink


def send_to(sink: Sink | None) -> None:
    """Set what the kernels call. With None they report nothing, and a thread that is still entered leaves at its next
    write."""
    global _sink
    _sink = sink


def writing(name: str, written: Written) -> Kernel:
    """Return the kernel of an overload that writes, by its full name."""
    include, key, is_inside, moves_none = private.include, private.KEY, private.below_versions, written.moves_no_version
    only_first = written.arguments[0][0] == 0 and len(written.arguments) == 1
    # `Tensor.set_` alone does not ask `__torch_function__`; a call of the operator from Python does (torch 2.13;
    # test_exotic.py).
    sight = private.plain if written.op == "aten::set_" else None
    call: Kernel | None = None
    by_name: Kernel
    may_be_numbers: tuple[int, ...]
    quick: Quick | None

    def kernel(*args: object, **kwargs: object) -> object:
        nonlocal call, by_name, may_be_numbers, quick
        if call is None:  # `torch.ops` makes each of the 1,500 when it is first asked for, which takes 0.1 ms
            op = private.overload(name)
            by_name, may_be_numbers, quick, call = op._overloadpacket._op, _may_be_numbers(op), quicker(op), op._op
        sink, run, after, own = _sink, call, None, None
        if quick is not None and not kwargs and len(args) <= quick[2] and quick[1].issuperset(map(type, args)):
            run = quick[0]
        else:
            for i in may_be_numbers:
                if i < len(args) and type(args[i]) in NUMBERS:
                    run = by_name
        if sink is None:
            include(key, False)
            return run(*args, **kwargs)
        if not sink.all_writes and (moves_none or is_inside()):  # as the `copy_` of every `linear`
            include(key, False)
            try:
                return run(*args, **kwargs)
            finally:
                include(key, True)
        try:
            if only_first and isinstance(args[0], torch.Tensor):
                after = sink[0](written, args[0])
            else:
                for tensor in tensors(written, args, kwargs):
                    after = sink[0](written, tensor) or after
            if sink.own is not None:
                own = sink.own(written, args, kwargs)
        except ClobberError as stopped:
            without_own_frames(stopped)
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
            without_own_frames(error)
            raise
        finally:
            include(key, True)
        if after is not None:
            after()
        if own is not None:
            own()
        return result

    return kernel


def filling(kernel: Kernel, written: Written) -> Kernel:
    """Return a kernel that also tells the sink of the argument that its operator fills after saving it."""
    position, name = written.fills or (0, "")

    def call(*args: Any, **kwargs: Any) -> object:
        node = private.next_node()
        try:
            result = kernel(*args, **kwargs)
        except RuntimeError as error:
            without_own_frames(error)
            raise
        if _sink is not None:
            _sink.filled(kwargs[name] if name in kwargs else args[position], node, len(written.arguments) == 1)
        return result

    return call


def overwriting(kernel: Kernel, written: Written) -> Kernel:
    """Return a kernel that notes which running statistics its operator saves and overwrites."""
    known = running_statistics.under_way

    def call(*args: object, **kwargs: object) -> object:
        sink, thread = _sink, get_ident()
        if sink is None or not sink.contents:
            return kernel(*args, **kwargs)
        outer = known.get(thread)
        try:
            known[thread] = running_statistics.unsaved(tensors(written, args, kwargs))
        except Exception as failure:
            sink.lost(failure)
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as error:
            without_own_frames(error)
            raise
        finally:
            if outer is None:
                known.pop(thread, None)
            else:
                known[thread] = outer

    return call


def _may_be_numbers(op: OpOverload[..., object]) -> tuple[int, ...]:
    """Return the positions of tensor arguments that may reach a kernel as numbers which the overload does not accept.

    Inside PyTorch, `2 ** t` calls `pow.Tensor_Tensor_out` with the 2 as a tensor that is marked as a number. A Python
    kernel gets a plain number, and only a few overloads accept that (torch 2.13; tests/observe/core/test_numbers.py).
    The others are called by name, and PyTorch picks the overload for a number.
    """
    if private.takes_numbers(op._schema.name):
        return ()
    arguments = enumerate(op._schema.arguments)
    return tuple(i for i, argument in arguments if str(argument.type) == "Tensor" and argument.alias_info is None)


def passing(op: OpOverload[..., object], views: str = "") -> Kernel:
    """Return a kernel that runs the operator without kernels for what it calls: its inner writes are not logged.

    `views` is the operator's name if it returns several views, else empty.
    """
    call, include, exclude, key, quick = op._op, private.include, private.exclude, private.KEY, quicker(op)

    def kernel(*args: object, **kwargs: object) -> object:
        sink, run = _sink, call
        if quick is not None and not kwargs and quick.types.issuperset(map(type, args)):
            run = quick.function
        if sink is None:
            include(key, False)
            return run(*args, **kwargs)
        if views:
            sink.views(views)
        exclude(key, True)  # included all the same: `key_is_set` tells a save inside that no operator is writing
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            without_own_frames(error)
            raise
        finally:
            exclude(key, False)

    return kernel
