"""The private PyTorch names that noclobber stands on, each touched once, with a check that the release has them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.multiprocessing.reductions
from torch.utils.hooks import RemovableHandle

from noclobber.observe import releases

C: Any = torch._C
KEY_NAME = "TESTING_ONLY_GenericMode"
"""A dispatch key that PyTorch keeps for its tests: it sits above functorch and autograd, and nothing else uses it."""

REQUIRED = (
    "_C._autograd._get_sequence_nr",
    "_C._autograd._push_saved_tensors_default_hooks",
    "_C._autograd._pop_saved_tensors_default_hooks",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._autograd._saved_tensors_hooks_disable",
    "_C._autograd._saved_tensors_hooks_enable",
    "_C._current_autograd_node",
    "_C._should_allow_numbers_as_tensors",
    "_C._functorch.get_unwrapped",
    "_C._functorch.is_functorch_wrapped_tensor",
    "_C._are_functorch_transforms_active",
    "_C._storage_Use_Count",
    "_C.TensorBase._use_count",
    "autograd._engine_run_backward",
)
"""Without these there is no save registry. The dispatch key is optional: a TorchDispatchMode stands in for it."""


class UnsupportedTorch(RuntimeError):
    """This PyTorch release lacks a private name that noclobber needs."""


def missing() -> list[str]:
    """The names of `REQUIRED` that the installed PyTorch lacks."""
    absent = []
    for name in REQUIRED:
        try:
            operator.attrgetter(name)(torch)
        except AttributeError:
            absent.append("torch." + name)
    return absent


def require() -> None:
    """Raises UnsupportedTorch, naming the release and what it lacks."""
    absent = missing()
    if absent:
        raise UnsupportedTorch(
            f"noclobber does not know torch {torch.__version__}: it lacks {', '.join(absent)}; "
            f"torch {releases.OLDEST} to {releases.NEWEST} are supported"
        )


next_node: Callable[[], int] = C._autograd._get_sequence_nr
"""The number that the next autograd node of this thread will get (`Node::sequence_nr`, thread-local)."""


def engine() -> Callable[..., Any]:
    """The one door to the autograd engine, as torch.autograd calls it."""
    door: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]
    return door


def current_node() -> Any:
    """The node whose backward is running in this thread, None outside of one (set inside an unpack hook)."""
    return C._current_autograd_node()


# Not by their names on a tensor, which may be replaced while noclobber is on (aliases.py).
address: Callable[[torch.Tensor], int] = C.TensorBase.data_ptr
storage: Callable[[torch.Tensor], Any] = C.TensorBase.untyped_storage
"""A storage's Python object, which is there as long as the storage: weak references to it tell when that dies."""


def storage_key(tensor: torch.Tensor) -> int | None:
    """What tells whether two tensors share memory: where their storage begins; None without one (sparse, opaque).

    The address is cheaper than the Python object of a storage, and the same for memory that came in through numpy or
    DLPack. Where there is none (meta and fake tensors, empty ones, functorch's wrappers) the
    StorageImpl identifies itself. Both are reused as soon as the storage dies (955 of 1000 times, torch 2.13), so a key
    means something only while something holds the storage; the alias in a save does.
    """
    if type(tensor) in _PLAIN:
        try:
            begin = address(tensor)
        except RuntimeError:
            begin = 0
        if begin:
            return int(begin - tensor.storage_offset() * tensor.itemsize)
    return _identity(tensor)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _identity(tensor: torch.Tensor) -> int | None:
    try:
        while C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = C._functorch.get_unwrapped(tensor)
        return int(storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


storage_ref: Callable[[Any], Any] = torch.multiprocessing.reductions.StorageWeakRef
"""Tells by `expired()` whether a storage is still there, without holding its memory (torch leaves it untyped)."""


def version_of(tensor: torch.Tensor) -> int | None:
    """The version counter; None for an inference tensor, which has none."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


push_hooks: Callable[[Any, Any], None] = C._autograd._push_saved_tensors_default_hooks
pop_hooks: Callable[[], None] = C._autograd._pop_saved_tensors_default_hooks
top_hooks: Callable[[bool], Any] = C._autograd._top_saved_tensors_default_hooks


def remove_hooks(these: Callable[[tuple[Any, Any]], bool]) -> None:
    """Take the uppermost of `these` pairs of hooks off this thread's stack, also from below others."""
    above = []
    while (top := top_hooks(True)) is not None:
        pop_hooks()
        if these(top):
            break
        above.append(top)
    for others in reversed(above):
        push_hooks(*others)


KEY: Any = C._parse_dispatch_key(KEY_NAME) if hasattr(C, "_parse_dispatch_key") else None
include: Any = getattr(C, "_dispatch_tls_set_dispatch_key_included", None)
KEYS_BELOW: Any = C._dispatch_keyset_full_after(KEY) if hasattr(C, "_dispatch_keyset_full_after") else None
"""What a kernel on the spare key hands a call on to."""
HAS_KEY: bool = KEY is not None and include is not None and KEYS_BELOW is not None
"""Whether this release has the spare key at all; whether it works is for `writes.key_answers` to find out."""


def set_key(on: bool) -> None:
    """Send this thread's operators through the spare key, or stop doing so."""
    include(KEY, on)


def key_is_set() -> bool:
    """Whether this thread's operators go through the spare key."""
    return bool(HAS_KEY and C._dispatch_tls_is_dispatch_key_included(KEY))


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep noclobber's own operators out of the write log."""
    on = key_is_set()
    if on:
        set_key(False)
    try:
        yield
    finally:
        if on:
            set_key(True)


def no_modes() -> AbstractContextManager[Any]:
    """Keep noclobber's own operators from the program's dispatch modes; selective checkpoints count what they see."""
    if not C._len_torch_dispatch_stack():
        return nullcontext()
    hidden: AbstractContextManager[Any] = torch.utils._python_dispatch._disable_current_modes()
    return hidden


set_eval_frame: Callable[[Any], Any] = C._dynamo.eval_frame.set_eval_frame
"""By which torch.compile begins (a callback, or False) and ends (None) to look at the frames that this thread runs."""


def never_compile(function: Callable[..., Any], *, nor_its_calls: bool = True) -> None:
    """Have torch.compile run a Python function as it is, and what it calls."""
    eval_frame = C._dynamo.eval_frame
    skip, usual = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
    strategy = eval_frame._FrameExecStrategy(skip, skip if nor_its_calls else usual)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


plain: Callable[[], AbstractContextManager[None]] = C.DisableTorchFunction
"""Keeps what noclobber asks of tensors from the program's `__torch_function__` modes."""


@contextmanager
def aside() -> Iterator[None]:
    """For operators of noclobber's own: out of the write log and the graph, and out of sight of the program's modes."""
    with torch.no_grad(), unlogged(), no_modes(), plain():
        yield


transforms_active: Callable[[], bool] = C._are_functorch_transforms_active
"""Whether this thread is inside torch.func."""


def let_through() -> None:
    """Make the operators that take functions (`cond`, Functions under torch.func) pass over the spare key.

    They look their kernels up in Python and would find none (torch 2.13); those to come copy the list.
    """
    ops: Any = torch._ops
    passed_over = ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if KEY not in passed_over:
        passed_over.append(KEY)
        for one in ops._higher_order_ops.values():
            one.fallthrough(KEY)


_own_hooks = 0


def hook(register: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """Register a hook of noclobber's own; whatever else is registered in this process is the program's."""
    global _own_hooks
    handle = register(function)
    _own_hooks += 1
    return handle


def program_has_hooks() -> bool:
    """Whether the program ever registered a hook of any kind. Counts those of nodes too, which no patch could see."""
    return bool(RemovableHandle.next_id != _own_hooks)


use_count: Callable[[torch.Tensor], int] = C.TensorBase._use_count
"""How many hold a tensor: whatever refers to it from Python counts as one."""


def storage_holders(identity: int) -> int:
    """How many tensors share a storage, given by its `_cdata`; a Python object that stands for it counts as one."""
    return int(C._storage_Use_Count(identity))


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call a function once the backward under way in this thread has ended, and has freed what is not retained."""
    executor: Any = torch.autograd.Variable._execution_engine
    executor.queue_callback(function)


def saved_tensor(tensor: torch.Tensor) -> Any:
    """A save of PyTorch's own, as a node makes it of an input: `unpack` gives the tensor at its place in the graph."""
    if hasattr(C._autograd, "_make_saved_tensor"):
        return C._autograd._make_saved_tensor(tensor, is_output=False)
    return _SavedByNode(tensor)


class _SavedByNode:
    """Stands in on torch 2.10, which makes a save nowhere but in a node."""

    def __init__(self, tensor: torch.Tensor) -> None:
        apply = vars(C._FunctionBase)["apply"].__get__(None, _Saving)  # past what sees the program's own Functions
        with torch.enable_grad(), unlogged(), no_modes(), plain():
            self._made = apply(tensor)  # not its node: that lives as long as this

    def unpack(self) -> torch.Tensor:
        (tensor,) = C._FunctionBase.saved_tensors.__get__(self._made.grad_fn)
        return cast(torch.Tensor, tensor)


class _Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tensor)
        return tensor.new_empty(0)


def counting() -> AbstractContextManager[None]:
    """Below a dispatch mode, let what runs inside move version counters: gloo gathers with a counted `copy_`."""
    guard: AbstractContextManager[None] = C._SetExcludeDispatchKeyGuard(C.DispatchKey.ADInplaceOrView, False)
    return guard


def library(namespace: str) -> Any:
    """A handle to register kernels of a namespace with (torch.library.Library is not typed)."""
    make: Any = torch.library.Library
    return make(namespace, "IMPL")


def takes_numbers(operator: str) -> bool:
    """Whether the overloads of an operator ("aten::add_") take a Python number where their schema says Tensor."""
    return bool(C._should_allow_numbers_as_tensors(operator.partition("::")[2]))


def operator_names() -> list[str]:
    """The full names of all operators that are defined: "aten::add_.Tensor"."""
    return list(C._dispatch_get_all_op_names())


def operators_may_have_changed() -> tuple[int, ...]:
    """Counts that grow when operators are defined: from Python, by a loaded library, by an imported extension."""
    return (len(getattr(torch.library, "_defs", ())), len(torch.ops.loaded_libraries), len(sys.modules))
