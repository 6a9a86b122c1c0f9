"""The private PyTorch names that noclobber needs, each used in one place, with a check that the release has them."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import CodeType, FunctionType, GetSetDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
import torch.multiprocessing.reductions
from torch.utils.hooks import RemovableHandle

from noclobber.model.error import UnsupportedTorch
from noclobber.observe.torch_api import before_2_12, releases

if TYPE_CHECKING:
    from torch._C import DispatchKey, DispatchKeySet, _DispatchOperatorHandle
    from torch._ops import OpOverload
    from torch.autograd.graph import Node
    from torch.multiprocessing.reductions import StorageWeakRef

    class StorageRef(StorageWeakRef):
        """PyTorch's weak reference to a storage, with the types that its class lacks."""

        cdata: int

        def expired(self) -> bool:
            """Return True once the storage is gone."""


KEY_NAME = "TESTING_ONLY_GenericMode"
"""A dispatch key that PyTorch keeps for its tests. It sits above functorch and autograd, and nothing else uses it."""
LOWER_KEY_NAME = "TESTING_ONLY_GenericWrapper"
"""The next key of that kind below it. Only the native part passes calls on to it."""


def lookup(name: str) -> Any:
    """Return what PyTorch holds under a private name such as "_C._autograd.SavedTensor".

    Raises UnsupportedTorch where PyTorch lacks the name. Call this when a way of seeing is armed, never when a module
    is imported: then a missing name costs one way of seeing, and not all of them.
    """
    try:
        return operator.attrgetter(name)(torch)
    except AttributeError:
        supported = f"torch {releases.OLDEST} to {releases.NEWEST} are supported"
        raise UnsupportedTorch(f"torch {torch.__version__} has no `torch.{name}`; {supported}") from None


def _not_yet(*_: object) -> NoReturn:
    raise RuntimeError("nothing is armed: call `private.require` first")


def _nothing_is(_: str) -> bool:
    return False


Thing = TypeVar("Thing")
Pair = tuple[Callable[..., object], Callable[..., object]]
"""A pack hook and its unpack hook."""


class Weak(weakref.ref[Thing]):
    """A weak reference that noclobber makes to a tensor of the program. The program does not notice it
    (transparent/checks_of_swaps.py)."""

    __slots__ = ()


# Without these names nothing can be watched. `require` looks them up.
C: ModuleType = torch._C
next_node: Callable[[], int] = _not_yet
"""Returns the number that the next autograd node of this thread will get (`Node::sequence_nr`, thread-local)."""
address: Callable[[torch.Tensor], int] = _not_yet
"""Returns what `tensor.data_ptr()` returns. The method itself may be replaced while noclobber is on
(exported_saves.py)."""
_has_storage: Callable[[torch.Tensor], bool] = _not_yet
_storage_of: Callable[[torch.Tensor], torch.UntypedStorage] = _not_yet
_storage_ref: Callable[[torch.UntypedStorage], StorageRef] = _not_yet
_data = cast(GetSetDescriptorType, _not_yet)
_cdata = cast(GetSetDescriptorType, _not_yet)
push_hooks: Callable[[Callable[..., object], Callable[..., object]], None] = _not_yet
pop_hooks: Callable[[], None] = _not_yet
top_hooks: Callable[[bool], Any] = _not_yet
"""Returns the uppermost pair of saved-tensor hooks of this thread, or None without one."""
plain: Callable[[], AbstractContextManager[None]] = _not_yet
"""Hides what noclobber asks of tensors from the program's `__torch_function__` modes."""
transforms_active: Callable[[], bool] = _not_yet
"""Returns True while this thread is inside torch.func."""
use_count: Callable[[torch.Tensor], int] = _not_yet
"""Returns how many holders a tensor has. All Python references together count as one."""
_current_node: Callable[[], Node | None] = _not_yet
_storage_holders: Callable[[int], int] = _not_yet
_is_wrapped: Callable[[torch.Tensor], bool] = _not_yet
_unwrapped: Callable[[torch.Tensor], torch.Tensor] = _not_yet
_modes_on_stack: Callable[[], int] = _not_yet
_without_modes: Callable[[], AbstractContextManager[object]] = _not_yet
_takes_numbers: Callable[[str], bool] = _not_yet
_operator_names: Callable[[], list[str]] = _not_yet
_schema_of: Callable[[str, str], torch.FunctionSchema] = _not_yet
_handle_of: Callable[[str, str], _DispatchOperatorHandle] = _not_yet
_eval_frame = cast(ModuleType, _not_yet)
_put_aside: Callable[[str, object], None] = _not_yet
_is_aside: Callable[[str], bool] = _nothing_is
_aside: Callable[[str], object] = _not_yet
_REQUIRED = {
    "next_node": "_C._autograd._get_sequence_nr",
    "address": "_C.TensorBase.data_ptr",
    "_has_storage": "_C._has_storage",
    "_storage_of": "_C.TensorBase.untyped_storage",
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
    "_schema_of": "_C._get_schema",
    "_handle_of": "_C._dispatch_find_schema_or_throw",
    "_eval_frame": "_C._dynamo.eval_frame",
    "_put_aside": "_C._stash_obj_in_tls",
    "_is_aside": "_C._is_key_in_tls",
    "_aside": "_C._get_obj_in_tls",
}

# The spare key. Where a release lacks any of these, a TorchDispatchMode is used instead.
KEY: DispatchKey | None = None
include = cast("Callable[[DispatchKey | None, bool], None]", None)
exclude = cast("Callable[[DispatchKey | None, bool], None]", None)
"""Skips a key in this thread, even if it is included."""
KEYS_BELOW = cast("DispatchKeySet", None)
"""The keys below the spare key: a kernel on the spare key passes a call on to them."""
below_versions: Callable[[], bool] = _not_yet
"""Returns True inside the kernel of an operator, below the key that counts versions: writes there move none.

Only on the spare key: a TorchDispatchMode always runs below."""


def require() -> None:
    """Look up the private names without which nothing can be watched.

    Raises UnsupportedTorch, which names the release and the missing name.
    """
    global KEY, include, exclude, KEYS_BELOW, below_versions
    for name, path in _REQUIRED.items():
        globals()[name] = lookup(path)
    engine()
    try:
        KEY = lookup("_C._parse_dispatch_key")(KEY_NAME)
        include = lookup("_C._dispatch_tls_set_dispatch_key_included")
        exclude = lookup("_C._dispatch_tls_set_dispatch_key_excluded")
        KEYS_BELOW = lookup("_C._dispatch_keyset_full_after")(KEY)
        lookup("_C._dispatch_tls_is_dispatch_key_included")
        counting = lookup("_C._parse_dispatch_key")("ADInplaceOrView")
        below_versions = partial(lookup("_C._dispatch_tls_is_dispatch_key_excluded"), counting)
    except RuntimeError:  # from `_parse_dispatch_key`: it knows no key of that name
        KEY = None


def has_key() -> bool:
    """Return True if this release has the spare key. `write_kernels.key_answers` finds out whether the key works."""
    return KEY is not None


def engine() -> Callable[..., object]:
    """Return the function through which torch.autograd makes every call of the autograd engine."""
    door: Callable[..., object] = lookup("autograd._engine_run_backward")
    return door


def current_node() -> Node | None:
    """Return the node whose backward is running in this thread, None outside of one. It is set in an unpack hook."""
    return _current_node()


CALL = "noclobber: call"
"""Short, as the engine copies it for every node: C++ allocates no memory for 15 characters."""


def backward_call() -> Any:
    """Return what `set_backward_call` set for the call that this thread runs or works for; None outside of one.

    The engine copies the state of the calling thread into each thread that runs nodes of the call: the threads of
    devices, and those that take over where backward calls are nested deeply (torch 2.13;
    tests/observe/core/test_threads.py).
    """
    return _aside(CALL) if _is_aside(CALL) else None


def set_backward_call(call: object) -> None:
    """Set the backward call that this thread makes; None for no call.

    The entry goes then: PyTorch frees what a thread has left after Python has let go of it, and needs the interpreter
    for that. At the end of the program this waits for ever, or ends in SIGABRT (torch 2.13). torch 2.12 and older
    cannot remove it.
    """
    before_2_12.count(call, _put_aside)
    _put_aside(CALL, call)
    if call is None and (remove := getattr(C, "_remove_obj_from_tls", None)) is not None:
        remove(CALL)


def take(tensor: torch.Tensor) -> torch.Tensor:
    """Return what `tensor.data` gives."""
    taken: torch.Tensor = _data.__get__(tensor)
    return taken


def give(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Do what `tensor.data = data` does."""
    _data.__set__(tensor, data)


def identity(tensor: torch.Tensor) -> int:
    """Return a number that is unique to a tensor while the tensor lives, whatever Python object stands for it.

    The number may be used again after the tensor died.
    """
    return int(_cdata.__get__(tensor))


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a number that is equal for tensors that share memory; None without a storage (sparse, opaque).

    It is the address where the storage begins. That is cheaper than the Python object of a storage, and the same for
    memory that came in through numpy or DLPack. Without an address (meta and fake tensors, empty ones, functorch's
    wrappers) it is the identity of the StorageImpl. Both are reused as soon as the storage dies (955 of 1000 times,
    torch 2.13), so a key means something only while something holds the storage; the alias in a save does.
    """
    if type(tensor) in PLAIN:
        try:
            begin = address(tensor)
        except RuntimeError:
            begin = 0
        if begin:
            offset: int = tensor.storage_offset()  # type: ignore[assignment]
            begin -= offset * tensor.itemsize
        if begin:
            return begin
    return _key_of_storage(tensor)


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors that no subclass changes."""


def _key_of_storage(tensor: torch.Tensor) -> int | None:
    """Return the key by the storage itself, which a subclass that wraps other tensors has too, without an address."""
    try:
        held = storage(tensor)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None
    identity: int = held._cdata
    if held.device.type == "meta":  # of a fake tensor too, which warns of a question for its address (torch 2.13)
        return identity
    try:
        return held.data_ptr() or identity
    except RuntimeError:
        return identity


def is_view_of_function(tensor: torch.Tensor) -> bool:
    """Return True if a custom Function returned this tensor as a view, which PyTorch marks as not to be written."""
    return creation_of(tensor) == "IN_CUSTOM_FUNCTION"


def creation_of(tensor: torch.Tensor) -> str:
    """Return how a view was made, by autograd's name, "MULTI_OUTPUT_NODE"; empty for what autograd knows as no view."""
    # Of a detach, which is a view without a base, PyTorch raises (torch 2.13).
    return _CREATIONS[_creation(tensor).value] if _creation is not None and tensor._base is not None else ""


_creation = getattr(C._autograd, "_get_creation_meta", None)
_CREATIONS: dict[int, str] = (
    {} if _creation is None else {one.value: name for name, one in C._autograd.CreationMeta.__members__.items()}
)
"""The names by value: asking a value for its name takes 2 microseconds (torch 2.13)."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor below the wrappers of torch.func."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    return tensor


def bytes_at(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first byte; 0 where its storage has no memory.

    A program may take the memory of a storage away for a while (`untyped_storage().resize_(0)`, as FSDP does). A view
    into it still has an address, but nothing lies there (torch 2.13; tests/observe/core/test_kinds.py). Raises
    RuntimeError without a storage.
    """
    begin = address(tensor)
    if begin and (offset := tensor.storage_offset()):
        return begin if begin != offset * tensor.itemsize else 0
    return begin


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor; every question about one comes through here. Raises NotImplementedError where
    there is none.

    PyTorch itself does not always look: a number on the lazy device has no storage, and what it gives in place of one
    ends the process when it is asked anything (torch 2.13; tests/observe/core/test_kinds.py).
    """
    if not _has_storage(tensor):
        raise NotImplementedError("this tensor has no storage")
    return _storage_of(tensor)


def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the Python object of a tensor's storage. It lives as long as the storage, so it can be referred to weakly.

    The class of a lazy parameter refuses to be asked (torch 2.13; tests/observe/core/test_lazy_modules.py), so
    `plain` goes past it.
    """
    with plain():
        return _storage(unwrapped(tensor))


def storage_ref(tensor: torch.Tensor) -> StorageRef:
    """Return a reference whose `expired()` says whether the storage that the tensor has now is gone.

    The reference does not hold the memory, but no other storage gets the same identity while the reference exists.
    Unlike a weak reference to the tensor it does not forbid `swap_tensors` (torch 2.13;
    tests/observe/detectors/test_untracked.py).
    """
    return _storage_ref(storage(tensor))


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the version counter; None for an inference tensor, which has none."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None


def share_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors have the same version counter, which moves for a moment and is put back."""
    before, of_other = version_of(one), version_of(other)
    if before is None or before != of_other:
        return False
    set_version(one, before + 1)
    try:
        return version_of(other) != of_other
    finally:
        set_version(one, before)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor that has one, and so that of all its views."""
    lookup("_C._autograd._unsafe_set_version_counter")([tensor], [version])


def replace_hooks(these: Callable[[Pair], bool], by: Pair | None = None) -> None:
    """Remove the uppermost pair for which `these` returns True from this thread's stack of hooks; put `by` in its
    place. The pair may lie below others, which stay."""
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
    """Return True if this thread's operators go through the spare key."""
    return bool(KEY is not None and C._dispatch_tls_is_dispatch_key_included(KEY))


def key_works() -> bool:
    """Return True if kernels see this thread's operators: the key is included and not excluded."""
    return key_is_set() and not C._dispatch_tls_is_dispatch_key_excluded(KEY)


@contextmanager
def logged() -> Iterator[None]:
    """Let kernels see the operators of a block, even inside an operator that runs without kernels."""
    was_set, was_excluded = key_is_set(), C._dispatch_tls_is_dispatch_key_excluded(KEY)
    include(KEY, True)
    exclude(KEY, False)
    try:
        yield
    finally:
        include(KEY, was_set)
        exclude(KEY, was_excluded)


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


def no_modes() -> AbstractContextManager[object]:
    """Hide noclobber's own operators from the program's dispatch modes: selective checkpoints count operators."""
    return _without_modes() if _modes_on_stack() else nullcontext()


def push_mode(mode: object) -> None:
    """Put a mode on this thread's stack, for whoever restores the stack to take off."""
    lookup("_C._push_on_torch_dispatch_stack")(mode)


def never_compile(function: Callable[..., object], *, nor_its_calls: bool = True) -> None:
    """Make torch.compile run a Python function as it is. With `nor_its_calls` the same holds for what it calls."""
    skip, usual = _eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT
    strategy = _eval_frame._FrameExecStrategy(skip, skip if nor_its_calls else usual)
    _eval_frame.set_code_exec_strategy(cast(FunctionType, function).__code__, strategy)


@contextmanager
def aside() -> Iterator[None]:
    """Run noclobber's own operators outside of the write log and the graph, unseen by the program's modes.

    They run outside of inference mode too: a tensor made there has no version counter, and cannot be written outside
    of that mode (torch 2.13; tests/observe/core/test_inference.py).
    """
    with usual(), torch.no_grad(), unlogged(), no_modes(), plain():
        yield


def usual() -> AbstractContextManager[object]:
    """Leave the program's inference mode. Results can require a gradient again, except under `no_grad`."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def let_through() -> None:
    """Make the operators that take functions (`cond`, Functions under torch.func) skip the spare key.

    They look up their kernels in Python and would find none for it (torch 2.13). Operators that are defined later copy
    the list that is changed here.
    """
    ops = lookup("_ops")
    passed_over = ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if KEY not in passed_over:
        passed_over.append(KEY)
        for op in ops._higher_order_ops.values():
            op.fallthrough(KEY)


_own_hooks = 0
Function = TypeVar("Function")
Registered = TypeVar("Registered")


def hook(register: Callable[[Function], Registered], function: Function) -> Registered:
    """Register one of noclobber's own hooks and return its handle.

    These are counted: all other hooks of the process are the program's.
    """
    global _own_hooks
    handle = register(function)
    _own_hooks += 1
    return handle


def program_hooks() -> int:
    """Return how many hooks the program has ever registered, of any kind, also on nodes, which no patch could see."""
    return int(RemovableHandle.next_id) - _own_hooks


def program_has_hooks() -> bool:
    """Return True if the program ever registered a hook of any kind."""
    return bool(RemovableHandle.next_id != _own_hooks)


def storage_holders(identity: int) -> int:
    """Return how many tensors share the storage with this `_cdata`. The storage's Python object counts as one more."""
    return _storage_holders(identity)


def is_only_holder(tensor: torch.Tensor) -> bool:
    """Return True if torch has allocated the storage of a plain tensor, and no other tensor shares it."""
    try:
        storage = _storage(tensor)  # the Python object, which counts as a holder too
        return _storage_holders(storage._cdata) == 2 and storage.resizable()
    except (RuntimeError, NotImplementedError):  # without a storage: sparse ones
        return False


def storage_at(identity: int) -> torch.UntypedStorage | None:
    """Return the storage with this `_cdata`, which a weak reference must hold; None once the storage is gone."""
    memory: torch.UntypedStorage | None = lookup("UntypedStorage._new_with_weak_ptr")(identity)
    return memory


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call a function when the backward that this thread runs has ended and has freed what is not retained."""
    lookup("autograd.Variable._execution_engine").queue_callback(function)


def empty_queue() -> None:
    """Make the engine drop the nodes that failed backward calls of this thread have left in its queue.

    Any backward does: the engine takes such nodes first, and drops them without running them.
    """
    with aside():
        leaf = torch.zeros((), device="cpu", requires_grad=True)
        run = lookup("autograd.Variable._execution_engine").run_backward
        run((leaf,), (torch.zeros_like(leaf),), False, False, (), allow_unreachable=True, accumulate_grad=True)


def counting() -> AbstractContextManager[None]:
    """Let operators inside the block move version counters although they run below a dispatch mode.

    gloo needs it: it gathers with a `copy_` that is counted.
    """
    guard: AbstractContextManager[None] = C._SetExcludeDispatchKeyGuard(C.DispatchKey.ADInplaceOrView, False)
    return guard


def library(namespace: str) -> Any:
    """Return a torch.library.Library, which has no types, to register kernels for the operators of a namespace."""
    make: Callable[[str, str], object] = torch.library.Library
    return make(namespace, "IMPL")


def takes_numbers(operator: str) -> bool:
    """Return True if an operator ("aten::add_") takes a Python number where its schema says Tensor."""
    return _takes_numbers(operator.partition("::")[2])


def operator_names() -> list[str]:
    """Return the full names of all operators that are defined, such as "aten::add_.Tensor"."""
    return _operator_names()


def schema(name: str) -> torch.FunctionSchema | None:
    """Return the schema of an operator's full name; None if there is no such operator. It is ten times as fast as
    asking `torch.ops`, and makes nothing there."""
    base, _, last = name.partition(".")
    try:
        return _schema_of(base, last)
    except RuntimeError:
        return None


def handle(name: str) -> _DispatchOperatorHandle:
    """Return what calls the kernels of an operator, by its full name."""
    base, _, last = name.partition(".")
    return _handle_of(base, last)


def overload(name: str) -> OpOverload[..., object]:
    """Return the operator of a full name, "aten::add_.Tensor". Raises AttributeError and RuntimeError."""
    namespace, _, rest = name.partition("::")
    base, _, last = rest.partition(".")
    found: OpOverload[..., object] = getattr(getattr(getattr(torch.ops, namespace), base), last or "default")
    return found


def names_of(function: object) -> list[str]:
    """Return the full names of the operators that a function of `torch.ops` stands for; empty for any other one."""
    if not isinstance(function, torch._ops.OpOverloadPacket):
        return []
    base = function._qualified_op_name
    return [f"{base}.{one}" if one else base for one in function._overload_names]


def is_operator(function: object) -> bool:
    """Return True for an operator with one schema; False for those that take functions (`cond`)."""
    return isinstance(function, torch._ops.OpOverload)


def overloads_of(function: object) -> list[OpOverload[..., object]]:
    """Return the operators that a function of `torch.ops` stands for; empty for any other function."""
    if isinstance(function, torch._ops.OpOverload):
        return [function]
    if isinstance(function, torch._ops.OpOverloadPacket):
        return [getattr(function, one) for one in function.overloads()]  # type: ignore[no-untyped-call]
    return []


def is_of_custom_function(node: Node) -> bool:
    """Return True for a node that a Function of Python's made, which is the `ctx` of its forward."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def module_call() -> CodeType:
    """Return the code by which every module is called; its frames hold the module as `self`."""
    code: CodeType = lookup("nn.Module._call_impl").__code__
    return code


def operators_may_have_changed() -> tuple[int, ...]:
    """Return counts that grow when operators are defined: from Python, by a loaded library, by an extension."""
    return (len(getattr(torch.library, "_defs", ())), len(torch.ops.loaded_libraries), len(sys.modules))
