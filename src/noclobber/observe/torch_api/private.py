"""The private PyTorch names that noclobber stands on, each touched once, with a check that the release has them."""

from __future__ import annotations

import ctypes
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
import torch.multiprocessing.reductions
from torch.utils.hooks import RemovableHandle

from noclobber.model.error import UnsupportedTorch
from noclobber.observe.torch_api import releases

KEY_NAME = "TESTING_ONLY_GenericMode"
"""A dispatch key that PyTorch keeps for its tests: it sits above functorch and autograd, and nothing else uses it."""


def lookup(name: str) -> Any:
    """What PyTorch holds under a private name: "_C._autograd.SavedTensor". Raises UnsupportedTorch where it lacks it.

    Called when a way of seeing is armed, and never when a module is imported: then that way is lost, and not all.
    """
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        supported = f"torch {releases.OLDEST} to {releases.NEWEST} are supported"
        raise UnsupportedTorch(f"torch {torch.__version__} has no `torch.{name}`; {supported}") from None


def _not_yet(*_: Any) -> Any:
    raise RuntimeError("nothing is armed: call `private.require` first")


def _nothing_is(_: str) -> bool:
    return False


Thing = TypeVar("Thing")


class Weak(weakref.ref[Thing]):
    """A weak reference of noclobber's own to a tensor of the program, unnoticed by it (swapped_tensors.py)."""

    __slots__ = ()


# What everything stands on: without one of these nothing can be watched. `require` looks them up.
C: Any = torch._C
next_node: Callable[[], int] = _not_yet
"""The number that the next autograd node of this thread will get (`Node::sequence_nr`, thread-local)."""
address: Callable[[torch.Tensor], int] = _not_yet
"""Not by its name on a tensor, which may be replaced while noclobber is on (exported_saves.py)."""
_storage: Callable[[torch.Tensor], Any] = _not_yet
_storage_ref: Callable[[Any], Any] = _not_yet
_data: Any = _not_yet
_cdata: Any = _not_yet
push_hooks: Callable[[Any, Any], None] = _not_yet
pop_hooks: Callable[[], None] = _not_yet
top_hooks: Callable[[bool], Any] = _not_yet
plain: Callable[[], AbstractContextManager[None]] = _not_yet
"""Keeps what noclobber asks of tensors from the program's `__torch_function__` modes."""
transforms_active: Callable[[], bool] = _not_yet
"""Whether this thread is inside torch.func."""
use_count: Callable[[torch.Tensor], int] = _not_yet
"""How many hold a tensor: whatever refers to it from Python counts as one."""
_current_node: Callable[[], Any] = _not_yet
_storage_holders: Callable[[int], int] = _not_yet
_is_wrapped: Callable[[torch.Tensor], bool] = _not_yet
_unwrapped: Callable[[torch.Tensor], torch.Tensor] = _not_yet
_modes_on_stack: Callable[[], int] = _not_yet
_without_modes: Callable[[], AbstractContextManager[Any]] = _not_yet
_takes_numbers: Callable[[str], bool] = _not_yet
_operator_names: Callable[[], list[str]] = _not_yet
_eval_frame: Any = _not_yet
_put_aside: Callable[[str, Any], None] = _not_yet
_is_aside: Callable[[str], bool] = _nothing_is
_aside: Callable[[str], Any] = _not_yet
_REQUIRED = {
    "next_node": "_C._autograd._get_sequence_nr",
    "address": "_C.TensorBase.data_ptr",
    "_storage": "_C.TensorBase.untyped_storage",
    "_storage_ref": "multiprocessing.reductions.StorageWeakRef",
    "_data": "_C.TensorBase.data",
    "_cdata": "_C.TensorBase._cdata",
    "push_hooks": "_C._autograd._push_saved_tensors_default_hooks",
    "pop_hooks": "_C._autograd._pop_saved_tensors_default_hooks",
    "top_hooks": "_C._autograd._top_saved_tensors_default_hooks",
    "plain": "_C.DisableTorchFunction",
    "transforms_active": "_C._are_functorch_transforms_active",
    "use_count": "_C.TensorBase._use_count",
    "_current_node": "_C._current_autograd_node",
    "_storage_holders": "_C._storage_Use_Count",
    "_is_wrapped": "_C._functorch.is_functorch_wrapped_tensor",
    "_unwrapped": "_C._functorch.get_unwrapped",
    "_modes_on_stack": "_C._len_torch_dispatch_stack",
    "_without_modes": "utils._python_dispatch._disable_current_modes",
    "_takes_numbers": "_C._should_allow_numbers_as_tensors",
    "_operator_names": "_C._dispatch_get_all_op_names",
    "_eval_frame": "_C._dynamo.eval_frame",
    "_put_aside": "_C._stash_obj_in_tls",
    "_is_aside": "_C._is_key_in_tls",
    "_aside": "_C._get_obj_in_tls",
}

# The spare key, for which a TorchDispatchMode stands in where a release lacks any of it.
KEY: Any = None
include: Any = None
KEYS_BELOW: Any = None
"""What a kernel on the spare key hands a call on to."""


def require() -> None:
    """Look up the private names that everything stands on. Raises UnsupportedTorch, naming the release and the name."""
    global KEY, include, KEYS_BELOW
    for name, path in _REQUIRED.items():
        globals()[name] = lookup(path)
    engine()
    try:
        KEY = lookup("_C._parse_dispatch_key")(KEY_NAME)
        include = lookup("_C._dispatch_tls_set_dispatch_key_included")
        KEYS_BELOW = lookup("_C._dispatch_keyset_full_after")(KEY)
        lookup("_C._dispatch_tls_is_dispatch_key_included")
    except RuntimeError:  # of the first: it knows no key of that name
        KEY = None


def has_key() -> bool:
    """Whether this release has the spare key at all; whether it works is for `writes.key_answers` to find out."""
    return KEY is not None


def engine() -> Callable[..., Any]:
    """The one door to the autograd engine, as torch.autograd calls it."""
    door: Callable[..., Any] = lookup("autograd._engine_run_backward")
    return door


def current_node() -> Any:
    """The node whose backward is running in this thread, None outside of one (set inside an unpack hook)."""
    return _current_node()


_CALL = "noclobber: the backward call under way"
_PROBE = "noclobber: a probe"


def backward_call() -> Any:
    """What was set with `set_backward_call` for the call that this thread runs or works for; None outside of one.

    A call of the engine takes the thread's own state along, into each thread that runs nodes of it: those of devices,
    and those that stand in where a backward is nested deeply (torch 2.13; tests/observe/core/test_threads.py).
    """
    return _aside(_CALL) if _is_aside(_CALL) else None


def set_backward_call(call: Any) -> None:
    """Say which backward call this thread makes; None for no call. It stays: torch 2.12 can't take it away again."""
    _set_aside(_CALL, call)


def _set_aside(name: str, thing: Any) -> None:
    """Keep something in the thread's own state.

    torch 2.10 and 2.11 count no reference for it, and give one back in the end: Python then frees what is still in use
    (tests/observe/torch_api/test_releases.py).
    """
    if _uncounted():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _put_aside(name, thing)


@cache
def _uncounted() -> bool:
    probe = object()
    before = sys.getrefcount(probe)
    _put_aside(_PROBE, probe)
    uncounted = sys.getrefcount(probe) == before
    if uncounted:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    _put_aside(_PROBE, None)
    return uncounted


def take(tensor: torch.Tensor) -> torch.Tensor:
    """What `tensor.data` gives."""
    taken: torch.Tensor = _data.__get__(tensor)
    return taken


def give(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """What `tensor.data = data` does."""
    _data.__set__(tensor, data)


def identity(tensor: torch.Tensor) -> int:
    """What tells a tensor, whatever Python object stands for it, while it is there. It is used again then."""
    return int(_cdata.__get__(tensor))


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
        return int(storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def is_view_of_function(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view that a custom Function returned, which PyTorch marks as not to be written."""
    known = getattr(C._autograd, "_get_creation_meta", None)
    return (
        known is not None and tensor._is_view() and bool(known(tensor) == C._autograd.CreationMeta.IN_CUSTOM_FUNCTION)
    )


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below the wrappers of torch.func."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    return tensor


def storage(tensor: torch.Tensor) -> Any:
    """A storage's Python object, which is there as long as the storage: weak references to it tell when that dies.

    A lazy parameter's class refuses to be asked (torch 2.13; tests/observe/core/test_lazy_modules.py), so it is not.
    """
    with plain():
        return _storage(unwrapped(tensor))


def storage_ref(tensor: torch.Tensor) -> Any:
    """What tells by `expired()` whether the storage that a tensor has is still there, without holding its memory.

    Nothing has the address of the storage as long as this is there, and unlike a weak reference to the tensor it does
    not forbid `swap_tensors` (torch 2.13; tests/observe/detectors/test_untracked.py).
    """
    return _storage_ref(storage(tensor))


def version_of(tensor: torch.Tensor) -> int | None:
    """The version counter; None for an inference tensor, which has none."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


def replace_hooks(these: Callable[[tuple[Any, Any]], bool], by: tuple[Any, Any] | None = None) -> None:
    """Take the uppermost of `these` pairs of hooks off this thread's stack, also from below others, and put one in its
    place."""
    above = []
    while (top := top_hooks(True)) is not None:
        pop_hooks()
        if these(top):
            break
        above.append(top)
    above += [by] if by is not None else []
    for pair in reversed(above):
        push_hooks(*pair)


def set_key(on: bool) -> None:
    """Send this thread's operators through the spare key, or stop doing so."""
    include(KEY, on)


def key_is_set() -> bool:
    """Whether this thread's operators go through the spare key."""
    return bool(KEY is not None and C._dispatch_tls_is_dispatch_key_included(KEY))


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
    return _without_modes() if _modes_on_stack() else nullcontext()


def never_compile(function: Callable[..., Any], *, nor_its_calls: bool = True) -> None:
    """Have torch.compile run a Python function as it is, and what it calls."""
    skip, usual = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
    strategy = _eval_frame._FrameExecStrategy(skip, skip if nor_its_calls else usual)
    _eval_frame.set_code_exec_strategy(function.__code__, strategy)


@contextmanager
def aside() -> Iterator[None]:
    """For operators of noclobber's own: out of the write log and the graph, and out of sight of the program's modes.

    Out of inference mode too: what is made there has no version counter, and can be written nowhere else (torch 2.13;
    tests/observe/core/test_inference.py).
    """
    with usual(), torch.no_grad(), unlogged(), no_modes(), plain():
        yield


def usual() -> AbstractContextManager[Any]:
    """Leave the program's inference mode. What is made inside requires a gradient again, but for `no_grad`."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def let_through() -> None:
    """Make the operators that take functions (`cond`, Functions under torch.func) pass over the spare key.

    They look their kernels up in Python and would find none (torch 2.13); those to come copy the list.
    """
    ops = lookup("_ops")
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


def storage_holders(identity: int) -> int:
    """How many tensors share a storage, given by its `_cdata`; a Python object that stands for it counts as one."""
    return _storage_holders(identity)


def storage_at(identity: int) -> Any:
    """The storage of a `_cdata` that a weak reference holds; None where it is gone."""
    return lookup("UntypedStorage._new_with_weak_ptr")(identity)


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call a function once the backward under way in this thread has ended, and has freed what is not retained."""
    lookup("autograd.Variable._execution_engine").queue_callback(function)


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
    return _takes_numbers(operator.partition("::")[2])


def operator_names() -> list[str]:
    """The full names of all operators that are defined: "aten::add_.Tensor"."""
    return _operator_names()


def operators_may_have_changed() -> tuple[int, ...]:
    """Counts that grow when operators are defined: from Python, by a loaded library, by an imported extension."""
    return (len(getattr(torch.library, "_defs", ())), len(torch.ops.loaded_libraries), len(sys.modules))
