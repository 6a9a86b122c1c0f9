"""The write log: Python kernels on a spare dispatch key for the overloads that write, fallthrough for all others."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from sys import getrefcount
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noclobber.model.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core import custom_op_kernels, running_statistics
from noclobber.observe.torch_api import private

if TYPE_CHECKING:
    from torch._ops import OpOverload

Kernel = Callable[..., object]
After = Callable[[], object]
"""Called after a write."""


class Written(NamedTuple):
    """What an overload writes. Arguments are given as (position, name)."""

    op: str
    arguments: tuple[tuple[int, str], ...]
    uncounted: bool
    """Whether it leaves the version counters as they are."""
    flag: int | None = None
    """The position of the flag that makes it write (batch norm's `training`); None if it always writes."""
    detaches: bool = False
    """Whether it cuts the tensor off its graph. PyTorch notices this by other means than versions."""
    undeclared: bool = False
    """Whether it writes although its schema does not say so."""
    fills: tuple[int, str] | None = None
    """The argument that it writes after saving it, without moving a version (late_fills.py); None for most."""

    @property
    def only_moves(self) -> bool:
        """Return True if it changes which memory a tensor shows, and no bytes."""
        return self.op in ("data=", "swap_tensors") or self.op.partition("::")[2] in _MOVING

    @property
    def is_statistics(self) -> bool:
        """Return True if it writes batch norm's running statistics: training saves them but does not read them."""
        return self.op.partition("::")[2].startswith(_BATCH_NORM)

    @property
    def moves_no_version(self) -> bool:
        """Return True if no version moves. Of a collective one may: gloo gathers with a `copy_` in another thread."""
        return self.uncounted and not self.is_collective

    @property
    def is_collective(self) -> bool:
        """Return True if several processes take part. If one process stops the write, the others wait for it."""
        return self.op.startswith(_COLLECTIVES)


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


_BATCH_NORM = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_update_stats",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""They write running_mean and running_var, though their schemas do not say so (torch 2.13; test_coverage.py)."""
_UNCOUNTED = (
    "_fused_",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
"""Writing overloads that have no kernel to move the version (torch 2.13; tests/observe/core/test_coverage.py)."""


_MOVING = frozenset(
    """
    as_strided_ detach_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """.split()  # noqa: SIM905
)
"""The operators that PyTorch tags `inplace_view` (torch 2.13; tests/observe/core/test_coverage.py)."""

_FILLS = {"aten::rrelu_with_noise": (1, "noise"), "aten::rrelu_with_noise_": (1, "noise")}
"""The argument that an operator writes after saving it (torch 2.13; tests/observe/core/test_filled.py)."""
_MADE_OF = {"aten::rrelu_": "aten::rrelu_with_noise_"}
"""Operators that only make an argument and call another operator. The write is seen there."""
_COLLECTIVES = ("c10d::", "_c10d_functional::")


_RECURRENT = frozenset(
    """
    aten::gru aten::gru_cell aten::lstm aten::lstm_cell aten::rnn_relu aten::rnn_relu_cell aten::rnn_tanh
    aten::rnn_tanh_cell
    """.split()  # noqa: SIM905
)
"""Operators that write many times, but only to memory that they have made themselves, so these writes cannot change a
save. An LSTMCell on the CPU writes eight times (torch 2.13; tests/observe/core/test_recurrent.py)."""


def written_by(schema: torch.FunctionSchema) -> Written | None:
    """Return what an overload writes; None if it writes nothing. The tables above correct schemas that are wrong."""
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
    if not schema.is_mutable:
        return None
    arguments = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if (alias := a.alias_info) is not None and alias.is_write
    )
    if not arguments:
        return None
    uncounted = namespace == "_c10d_functional" or (namespace == "aten" and name.startswith(_UNCOUNTED))
    fills, op = _FILLS.get(schema.name), next((name for name in _MADE_OF if _MADE_OF[name] == schema.name), schema.name)
    return Written(op, arguments, uncounted, detaches=schema.name == "aten::detach_", fills=fills)


def makes_many_views(schema: torch.FunctionSchema) -> bool:
    """Return True if an overload returns a list of views of its input (split, unbind, chunk ...)."""
    returns = schema.returns
    if schema.is_mutable or len(returns) != 1 or str(returns[0].type) != "List[Tensor]":
        return False
    return any(a.alias_info is not None and a.alias_info.after_set for a in schema.arguments)


def tensors(written: Written, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of the overload writes, also those in lists and nested lists."""
    if written.flag is not None and not args[written.flag]:
        return
    for position, name in written.arguments:
        value = kwargs[name] if name in kwargs else args[position] if position < len(args) else None
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield item
                elif isinstance(item, (list, tuple)):
                    yield from (inner for inner in item if isinstance(inner, torch.Tensor))


_registered: set[str] = set()
_libraries: dict[str, Any] = {}
kernels: list[tuple[str, str]] = []
"""The overloads that have a kernel, as ("aten", "add_.Tensor")."""
_scanned: tuple[int, ...] = ()
_scanning = threading.Lock()
"""Held by the thread that registers kernels. Operators that another thread defines meanwhile wait for the next scan."""
_sink: Sink | None = None
_enroll: Callable[[str, Written | str], object] | None = None


def take_first(enroll: Callable[[str, Written | str], object]) -> None:
    """Let the native part take the calls of operators that it can take, from the first registration on.

    `enroll` is called with the name of an overload and with what it writes, its short name if it returns several
    views, or "" if it is recurrent. The kernels written in Python then lie on the next key below, where the native ones
    pass calls on to them.
    """
    global _enroll
    _enroll = enroll


def connect(sink: Sink) -> None:
    """Send what the kernels see to `sink`. Register kernels for all overloads that have none yet (0.1 s at first).

    The kernels stay registered for the life of the process. A thread that was not entered (threads.py) never reaches
    them, and PyTorch's dispatch is as fast as before (measured: +0 ns).
    """
    global _sink
    _sink = sink
    if not private.has_key():
        return
    if "_" not in _libraries:
        # Only once, as `catch_warnings` makes Python forget which warnings of the program it has shown.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = private.library("_")
            library.fallback(torch.library.fallthrough_kernel, private.KEY_NAME)
            private.let_through()
            _libraries["_"] = library
    rescan()


def sink() -> Sink | None:
    """Return what the kernels call at present; None if nothing is connected."""
    return _sink


def rescan() -> None:
    """Register kernels for operators that were defined since the last scan, if there may be any.

    Asking for all names takes 3 ms, which is too much for a `watch` around each step.
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
            schemas = private.schemas()
            for name in unknown:
                _registered.add(name)
                if name in schemas:
                    _register(name, schemas[name])
    finally:
        _scanning.release()


def _register(name: str, schema: torch.FunctionSchema) -> None:
    namespace, _, rest = name.partition("::")
    written, compared = written_by(schema), False
    if written is not None:
        kernel = _write_kernel(name, written)
        if written.fills is not None:
            kernel = _filling(kernel, written)
        elif written.is_statistics:
            kernel = _overwriting(kernel, written)
    elif makes_many_views(schema):
        kernel = _passing_kernel(private.overload(name), schema.name)
    elif schema.name in _RECURRENT:
        kernel = _passing_kernel(private.overload(name))
    elif compared := custom_op_kernels.is_foreign(namespace):
        kernel = custom_op_kernels.kernel(private.overload(name), schema.name)
    else:
        return
    library = _libraries.get(namespace)
    if library is None:
        library = _libraries[namespace] = private.library(namespace)
    native = _enroll is not None and not compared and _is_usual(schema, written)
    library.impl(rest, kernel, private.LOWER_KEY_NAME if native else private.KEY_NAME, with_keyset=compared)
    if native and _enroll is not None:
        _enroll(name, written or ("" if schema.name in _RECURRENT else schema.name))
    kernels.append((namespace, rest))


def _is_usual(schema: torch.FunctionSchema, written: Written | None) -> bool:
    """Return True if the native part can take the calls: it writes tensors and lists of tensors, and no more."""
    if written is None:
        return True
    types = (str(schema.arguments[position].type) for position, _ in written.arguments)
    return written.fills is None and written.op != "aten::set_" and all(one in _WRITTEN_TYPES for one in types)


def _write_kernel(name: str, written: Written) -> Kernel:
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
                if i < len(args) and type(args[i]) in _NUMBERS:
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


def _filling(kernel: Kernel, written: Written) -> Kernel:
    position, name = written.fills or (0, "")

    def filling(*args: Any, **kwargs: Any) -> object:
        node = private.next_node()
        try:
            result = kernel(*args, **kwargs)
        except RuntimeError as error:
            without_own_frames(error)
            raise
        if _sink is not None:
            _sink.filled(kwargs[name] if name in kwargs else args[position], node, len(written.arguments) == 1)
        return result

    return filling


def _overwriting(kernel: Kernel, written: Written) -> Kernel:
    known = running_statistics.under_way

    def overwriting(*args: object, **kwargs: object) -> object:
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

    return overwriting


_WRITTEN_TYPES = ("Tensor", "Optional[Tensor]", "List[Tensor]")
_NUMBERS = frozenset((bool, int, float, complex))


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


class Quick(NamedTuple):
    """A function of PyTorch's own Python API that does the same as an operator, given arguments of some types.

    It reads its arguments in a half to three quarters of the time that a function of `torch.ops` takes.
    """

    function: Kernel
    types: frozenset[type]
    most: int
    """The number of arguments, all given by position, up to which it does the same."""


_QUICKER = frozenset(
    """
    aten::as_strided_ aten::chunk aten::fill_.Scalar aten::gru_cell aten::lstm_cell aten::native_batch_norm
    aten::resize_ aten::rnn_relu_cell aten::rnn_tanh_cell aten::split_with_sizes
    """.split()  # noqa: SIM905
)
"""Operators, other than those with a method of one or two tensors, that have such a function and are called often."""


def quicker(op: OpOverload[..., object]) -> Quick | None:
    """Return the function to call in place of an operator; None if it is not sure that there is one.

    A function calls the one overload that there is; of operators that take numbers for tensors, the one for tensors; of
    `fill_` with a number, the one for numbers. The other overloads of `copy_` are TorchScript's own (torch 2.13;
    tests/observe/core/test_quicker.py).
    """
    written, name, overload = written_by(op._schema), op._schema.name, op._overloadname
    function = private.function(name.removeprefix("aten::"))
    if function is None:
        return None
    if (name if overload == "default" else f"{name}.{overload}") in _QUICKER:
        return Quick(function, private.PLAIN | _NUMBERS | {list, type(None)}, len(op._schema.arguments))
    if not (name.startswith("aten::") and name.endswith("_")) or written is None or written.only_moves:
        return None
    numbers = private.takes_numbers(name)
    if overload == "Tensor":
        sure = numbers
    else:
        sure = overload == "default" and (name == "aten::copy_" or len(private.overloads_of(op._overloadpacket)) == 1)
    return Quick(function, private.PLAIN | _NUMBERS if numbers else private.PLAIN, 2) if sure else None


def _passing_kernel(op: OpOverload[..., object], views: str = "") -> Kernel:
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


def disconnect() -> None:
    """Stop reporting. A thread that is still entered leaves at its next write."""
    global _sink
    _sink = None


class WriteMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Used if the dispatch key does not work. It sees the same writes, at two to three times the cost."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sink, written = _sink, None
        if sink is None:
            return func(*args, **kwargs)
        try:
            written = what_is_written(func)
        except Exception as failure:
            sink.lost(failure)
        if written is None:
            told = (
                custom_op_kernels.before(func._schema.name, args, kwargs)
                if custom_op_kernels.is_foreign(func.namespace)
                else None
            )
            result = func(*args, **kwargs)
            if told is not None:
                told(result)
            return result
        if isinstance(written, str):
            sink.views(written)
            return func(*args, **kwargs)
        after, filled = None, None if written.fills is None else args[written.fills[0]]
        try:
            for tensor in tensors(written, args, kwargs):
                if tensor is not filled:  # it is saved by now, as autograd runs before a mode
                    after = sink.before(written, tensor) or after
        except ClobberError as stopped:
            without_own_frames(stopped)
            raise
        except Exception as failure:
            sink.lost(failure)
        unmoved = versions_of_lists(written, args, kwargs)
        try:
            with private.counting() if written.is_collective else nullcontext():
                result = func(*args, **kwargs)
        except RuntimeError as error:
            sink.failed(written, args, kwargs, error)
            without_own_frames(error)
            raise
        move_versions(unmoved)
        if filled is not None and torch.is_grad_enabled():
            sink.filled(filled, private.next_node() - 1, len(written.arguments) == 1)
        if after is not None:
            after()
        return result


def versions_of_lists(
    written: Written, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[torch.Tensor, int | None]]:
    """Return the versions of what an operator on lists of tensors is about to write, for `move_versions`."""
    if not written.op.startswith("aten::_foreach_"):
        return []
    plain = (tensor for tensor in tensors(written, args, kwargs) if type(tensor) in private.PLAIN)
    return [(tensor, private.version_of(tensor)) for tensor in plain]


def move_versions(before: list[tuple[torch.Tensor, int | None]]) -> None:
    """Move the versions that PyTorch has left as they were: it does so under a mode, and its check then stays silent.

    (torch 2.13; test_the_stand_in_mode_sees_the_same)
    """
    unmoved = [tensor for tensor, version in before if version is not None and private.version_of(tensor) == version]
    if unmoved:
        torch.autograd.graph.increment_version(unmoved)


def enter_mode() -> WriteMode:
    """Put a WriteMode on this thread's mode stack, and return it."""
    mode: Any = WriteMode
    return cast(WriteMode, mode().__enter__())


_cache: dict[OpOverload[..., object], Written | str | None] = {}
"""What an overload writes, or its name if it makes many views."""


def what_is_written(func: OpOverload[..., object]) -> Written | str | None:
    if func not in _cache:
        written = written_by(func._schema)
        _cache[func] = written or (func._schema.name if makes_many_views(func._schema) else None)
    return _cache[func]


@cache
def key_answers() -> bool:
    """Return True if a kernel on the spare key sees an `add_` in this release. A self-test, run once in a process."""
    if not private.has_key():
        return False
    seen: list[str] = []
    before = _sink
    try:
        nothing = lambda *_: None  # noqa: E731
        connect(Sink(lambda written, tensor: seen.append(written.op), nothing, nothing, nothing, nothing))
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


_counts: list[int] = []


def references_of_new() -> int:
    """Return how many references a `Sink.before` finds to a tensor that an operator has made itself and writes to; -1
    if no such call is seen. A tensor that anything in Python holds has more. It is counted once in a process."""

    def count(written: Written, tensor: torch.Tensor) -> None:
        if private.below_versions() and type(tensor) is torch.Tensor:
            _counts.append(getrefcount(tensor))

    if not _counts:
        before, nothing = _sink, lambda *_: None
        connect(Sink(count, nothing, nothing, nothing, nothing))
        private.set_key(True)
        try:
            with private.no_modes(), private.plain():  # the program's modes may make other tensors of these
                one = torch.zeros(1, 1, device="cpu", dtype=torch.float32)
                torch.nn.functional.linear(one, one, one[0])  # copies its bias into the result
        finally:
            private.set_key(False)
            _restore(before)
    return min(_counts, default=-1)


def _restore(sink: Sink | None) -> None:
    global _sink
    _sink = sink
