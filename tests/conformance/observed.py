"""One run of a program in one mode: what it computed, raised, warned of and left behind, and what noclobber said."""

from __future__ import annotations

import ctypes
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

import noclobber

See = Callable[[str, Any], None]
"""What a program calls with a name and a value, at the moment when the value is to be compared."""
Body = Callable[[See], None]


class Program(NamedTuple):
    """`start` makes the inputs anew and returns what is run with them; `name` tells it from others of its entry."""

    name: str
    start: Callable[[], Body]
    writes: bool = False
    """Whether it changes what may be saved: then a gradient may be right by luck."""


class Warned(NamedTuple):
    """A warning, and the line that it is given for."""

    category: str
    text: str
    path: str
    line: int


@dataclass(slots=True)
class Run:
    """What a run left behind. `values` has a row for each aspect of each tensor that the program showed."""

    values: dict[str, Any] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    """The type and the first line."""
    warnings: list[Warned] = field(default_factory=list)
    findings: tuple[str, ...] = ()
    failure: str = ""
    """The ways of seeing that noclobber lost."""


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "install": noclobber.install,
    "versions": lambda: noclobber.watch(contents=False),
    "contents": noclobber.watch,
    "preserve": noclobber.preserve,
}


def run(program: Program, around: Callable[[], AbstractContextManager[Any]] = nullcontext, poison: int = 0x5A) -> Run:
    """Run a program inside `around`, its inputs made outside; memory that nothing was written to holds `poison`."""
    done = Run()
    shown: list[tuple[str, Any]] = []
    seen = None
    _poison(poison)
    torch.default_generator.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    body = program.start()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with around() as seen:
                body(lambda name, value: shown.append((name, _snapshot(value))))
        except Exception as error:
            kind = RuntimeError if isinstance(error, noclobber.ClobberError) else type(error)
            done.error = (kind.__name__, str(error).partition("\n")[0])
    _look_at_noclobber(done, seen)
    for name, value in shown:
        for at, one in enumerate(value):
            for aspect, what in one.items():
                done.values[f"{aspect} of {name}[{at}]"] = _bytes(what) if isinstance(what, torch.Tensor) else what
    done.values["random state of torch"] = _bytes(torch.get_rng_state())
    done.values["random state of Python"] = hash(random.getstate())
    done.values["random state of numpy"] = hash(numpy.random.get_state()[1].tobytes())
    done.warnings = [
        Warned(one.category.__name__, str(one.message), one.filename, one.lineno)
        for one in warned
        if one.category is not noclobber.ClobberWarning
    ]
    done.values["state left behind"] = _left_behind()
    return done


def _look_at_noclobber(done: Run, seen: Any) -> None:
    """What noclobber found and whether it failed, of whatever `around` gave."""
    session = getattr(seen, "_session", None)
    if session is None:
        return
    report = session.report()
    done.findings = tuple(f"{one.code} {one.message}" for one in report.findings if one.severity == "error")
    done.failure = "; ".join(f"{one.way}: {one.why}" for one in report.coverage.lost)


def _left_behind() -> tuple[Any, ...]:
    """What is set for all that comes after, and whether a pair of hooks is on the stack that saves go through."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    flags = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    return (hooks is None, *flags, torch._C._len_torch_dispatch_stack(), torch.are_deterministic_algorithms_enabled())


def _snapshot(value: Any) -> list[dict[str, Any]]:
    """The aspects of each leaf of a tree, its bits as a copy: the program may write into the tensor later."""
    return [_aspects(leaf) for leaf in tree_flatten(value)[0]]


def _aspects(leaf: Any) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"value": repr(leaf) if isinstance(leaf, (int, float, complex, str, bool, torch.dtype)) else type(leaf)}
    aspects = {"kind": (type(leaf), leaf.dtype, str(leaf.layout), leaf.requires_grad, leaf.is_leaf, leaf.is_conj())}
    with suppress(RuntimeError, NotImplementedError):  # a lazy parameter has no shape, an inference tensor no version
        aspects["shape"] = (tuple(leaf.shape), leaf.stride() if leaf.layout is torch.strided else ())
    with suppress(RuntimeError):
        aspects["version"] = leaf._version
    with suppress(RuntimeError):
        aspects["node"] = leaf.grad_fn.name() if leaf.grad_fn is not None else None
    with suppress(RuntimeError, NotImplementedError, ValueError), torch.no_grad():
        aspects["bits"] = leaf.detach().clone()
    return aspects


def _bytes(tensor: torch.Tensor) -> Any:
    """All that a tensor holds, as bytes."""
    if tensor.is_meta:
        return None
    if tensor.is_nested:
        return [_bytes(one) for one in tensor.unbind()]
    if tensor.layout is torch.sparse_coo:
        return (_bytes(tensor._indices()), _bytes(tensor._values()))
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (_bytes(tensor.crow_indices()), _bytes(tensor.col_indices()), _bytes(tensor.values()))
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (_bytes(tensor.ccol_indices()), _bytes(tensor.row_indices()), _bytes(tensor.values()))
    plain = tensor.int_repr() if tensor.is_quantized else tensor
    row = torch.empty(plain.numel(), dtype=plain.dtype).copy_(plain.reshape(-1))
    return row.view(torch.uint8).numpy().tobytes()


def _poison(byte: int) -> None:
    """Have the C library fill what it hands out and takes back, so that what was never written shows (glibc)."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_PERTURB, byte)


_M_PERTURB = -6


@contextmanager
def right() -> Iterator[None]:
    """Each save is read back with the bytes that it had when it was saved: then gradients are right by definition."""
    # A backward may write into what it reads, and a second one reads it again.
    with saved_tensors_hooks(_copy, _copy), _Filled():
        yield


def _copy(saved: Any) -> torch.Tensor:
    return copied(saved.detach() if isinstance(saved, torch.Tensor) else saved[0])


class _Filled(TorchFunctionMode):
    """Where an operator fills what it has saved already, it is right as the operator leaves it (tests/observe/
    test_filled.py): copied once it has ended."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept: list[list[torch.Tensor]] = []

        def keep(saved: torch.Tensor) -> list[torch.Tensor]:
            kept.append([saved.detach()])
            return kept[-1]

        fills = "rrelu" in getattr(func, "__name__", "")
        with saved_tensors_hooks(keep, _copy) if fills else nullcontext():
            result = func(*args, **kwargs or {})
        for one in kept:
            one[0] = copied(one[0])
        return result


def copied(tree: Any) -> Any:
    """The same with new tensors on new memory: what shared a storage still does, at the same strides and offsets."""
    storages: dict[int, Any] = {}
    tensors: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in tensors:
            plain = tensor.detach()
            tensors[id(tensor)] = _moved(plain, storages) if _has_plain_memory(plain) else plain.clone()
            if isinstance(tensor, torch.nn.Parameter):
                tensors[id(tensor)] = torch.nn.Parameter(tensors[id(tensor)])
            tensors[id(tensor)].requires_grad_(tensor.requires_grad)
        return tensors[id(tensor)]

    with torch.no_grad():
        return torch.utils._pytree.tree_map_only(torch.Tensor, copy, tree)


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    marked = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not marked


def _moved(tensor: torch.Tensor, storages: dict[int, Any]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
