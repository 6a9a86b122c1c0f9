"""The kernels: Python functions that run in place of the operators that write, and tell the context of each write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from noclobber.model.reports.error import ClobberError
from noclobber.model.tracebacks import without_own_frames
from noclobber.observe.core.context import After, Context
from noclobber.observe.core.seen.records import taken
from noclobber.observe.core.seen.sites import place_of
from noclobber.observe.core.seen.written import Written, tensors
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.dispatch import modes, registry, spare_key
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import fingerprint_aside

Kernel = Callable[..., object]
Before = Callable[[Written, torch.Tensor], After | None]
"""Called before each written tensor. What it returns, if not None, runs after the write. ClobberError stops it."""
_NUMBERS = frozenset((bool, int, float, complex))
COPIED = "what `rrelu` draws once the program's saved-tensor hooks have copied it (backward reads the copy)"

_told: tuple[Context, Before] | None = None


def told() -> tuple[Context, Before] | None:
    """Return what the kernels tell at present; None if nobody listens."""
    return _told


def tell(told: tuple[Context, Before] | None) -> None:
    """Set what the kernels tell. With None they report nothing, and a thread that is still entered leaves at its next
    write."""
    global _told
    _told = told


def writing(name: str, written: Written) -> Kernel:
    """Return the kernel of an overload that writes, by its full name."""
    include, key, is_inside, moves_none = (
        spare_key.include,
        spare_key.KEY,
        spare_key.below_versions,
        written.moves_no_version,
    )
    # What an operator makes and fills by another one comes first, or as `out`: `abs` calls `abs.out`. Both have as many
    # references here (`write_kernels.references_of_new`); on torch 2.10 `out` has one more, and is looked up.
    (position, argument), is_alone = written.arguments[0], len(written.arguments) == 1 and written.flag is None
    # `Tensor.set_` alone does not ask `__torch_function__`; a call of the operator from Python does (torch 2.13;
    # test_exotic.py).
    sight: Callable[[], AbstractContextManager[None]] = modes.plain if written.op == "aten::set_" else nullcontext
    call: Kernel | None = None
    by_name: Kernel
    may_be_numbers: tuple[int, ...]

    def kernel(*args: object, **kwargs: object) -> object:
        nonlocal call, by_name, may_be_numbers
        if call is None:  # `torch.ops` makes each of the 1,500 when it is first asked for, which takes 0.1 ms
            op = registry.overload(name)
            by_name, may_be_numbers, call = op._overloadpacket._op, _may_be_numbers(op), op._op
        told, run, after, overlapped = _told, call, None, None
        for i in may_be_numbers:
            if i < len(args) and type(args[i]) in _NUMBERS:
                run = by_name
        if told is None:
            include(key, False)
            return run(*args, **kwargs)
        context, before = told
        if not context.watching and (moves_none or is_inside()):  # as the `copy_` of every `linear`
            try:
                include(key, False)  # a signal may interrupt right after it
                return run(*args, **kwargs)
            finally:
                include(key, True)
        taken[0] += 1
        node = engine_state.next_node()
        try:
            one = (args[position] if position < len(args) else kwargs.get(argument)) if is_alone else None
            if isinstance(one, torch.Tensor):
                after = before(written, one)
            else:
                for tensor in tensors(written, args, kwargs):
                    after = before(written, tensor) or after
            if context.keeping:
                overlapped = context.parts.overlaps(context, written, args, kwargs)
        except ClobberError as stopped:
            without_own_frames(stopped)
            raise
        except Exception as failure:
            context.core.fail(failure)
        try:
            include(key, False)
            with sight():
                result = run(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, RuntimeError):
                context.core.guarded(context.parts.refused, context, written, args, kwargs, error)
            without_own_frames(error)
            raise
        finally:
            include(key, True)
        if after is not None:
            after()
        if overlapped is not None:
            overlapped()
        if written.fills is not None:
            at, named = written.fills
            context.core.guarded(_filled, context, kwargs[named] if named in kwargs else args[at], node, is_alone)
        return result

    return kernel


def _filled(context: Context, tensor: torch.Tensor, node: int, last: bool) -> None:
    """Take the fingerprints again of what a node has saved, as its operator has just filled that tensor.

    The noise of `rrelu` is one: the node saves an empty tensor, and the operator then draws into it. Backward reads the
    filled tensor, so that is what counts as saved (torch 2.13; tests/observe/core/test_filled.py). `last` is True if
    the node saves nothing afterwards. An in-place operator still saves its result.
    """
    key = storages.storage_key(tensor)
    if key is None:
        return
    for reference in context.thread.packed:
        packed = reference()
        if packed is not None and packed.key == key and packed.node == node:
            packed.filled_last = last
            if packed.is_copy:
                context.bus.not_seen(COPIED)
            packed.digest = None if packed.digest is None else fingerprint_aside(tensor)
    for handle in context.live.at(key):
        if handle.node == node and handle.digest is not None:
            handle.digest = fingerprint_aside(tensor)


def _may_be_numbers(op: torch._ops.OpOverload[..., object]) -> tuple[int, ...]:
    """Return the positions of tensor arguments that may reach a kernel as numbers which the overload does not accept.

    Inside PyTorch, `2 ** t` calls `pow.Tensor_Tensor_out` with the 2 as a tensor that is marked as a number. A Python
    kernel gets a plain number, and only a few overloads accept that (torch 2.13; tests/observe/core/test_numbers.py).
    The others are called by name, and PyTorch picks the overload for a number.
    """
    if registry.takes_numbers(op._schema.name):
        return ()
    arguments = enumerate(op._schema.arguments)
    return tuple(i for i, argument in arguments if str(argument.type) == "Tensor" and argument.alias_info is None)


def passing(op: torch._ops.OpOverload[..., object], views: str = "") -> Kernel:
    """Return a kernel that runs the operator without kernels for what it calls: its inner writes are not logged.

    `views` is the operator's name if it returns several views, else empty.
    """
    run, include, exclude, key = op._op, spare_key.include, spare_key.exclude, spare_key.KEY

    def kernel(*args: object, **kwargs: object) -> object:
        told = _told
        if told is None:
            include(key, False)
            return run(*args, **kwargs)
        if views:
            told[0].core.guarded(views_made, told[0], views)
        exclude(key, True)  # included all the same: `key_is_set` tells a save inside that no operator is writing
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            without_own_frames(error)
            raise
        finally:
            exclude(key, False)

    return kernel


def views_made(context: Context, op: str) -> None:
    """Remember an operator that is about to return several views. Its node gets the next number; with gradients off it
    has none."""
    if torch.is_grad_enabled():
        context.memory.several.append((engine_state.next_node(), op, place_of(sys._getframe(1))))


Around = Callable[[str, tuple[object, ...], dict[str, object]], Callable[[object], object] | None]
"""Called with an operator's name and arguments before it runs. Returns what to call after it, with what the operator
returned; None for nothing."""

_OWN = frozenset(
    """
    aten prim prims quantized _quantized quantized_decomposed quantization static_runtime _test c10d c10d_functional
    _c10d_functional _c10d_functional_autograd symm_mem onednn mkldnn mkldnn_prepacked mkl profiler inductor
    inductor_prims _inductor_test debugprims rngprims sparse _native debug_mode_ops export _dtensor onnx onnx_symbolic
    streams flex_lib fsdp higher_order torchvision torchaudio
    """.split()  # noqa: SIM905
)
_around: Around | None = None


def is_foreign(namespace: str) -> bool:
    """Return True if a namespace is not PyTorch's own.

    The schemas of PyTorch's own operators are believed, except a few (written.py).
    """
    return namespace not in _OWN


def compare(around: Around | None) -> None:
    """Call `around` before each operator that has a kernel from `comparing`, or with None stop doing so."""
    global _around
    _around = around


def comparing(handle: torch._C._DispatchOperatorHandle, name: str) -> Kernel:
    """Return a kernel for an operator that is not PyTorch's own and whose schema says that it writes nothing: with it a
    detector compares the arguments before and after. Its first argument is the set of dispatch keys.

    The spare key stays set, so that the writes inside the operator are logged.
    """
    below = spare_key.KEYS_BELOW

    def compared(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        after = _around(name, args, kwargs) if _around is not None else None
        result = handle.redispatch_boxed(keys & below, *args, **kwargs)
        if after is not None:
            after(result)
        return result

    return compared
