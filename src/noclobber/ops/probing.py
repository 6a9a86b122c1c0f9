"""Calls a function on copies of its arguments, and learns which of its tensors backward needs unchanged."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import increment_version, saved_tensors_hooks
from torch.utils import _pytree as pytree

from noclobber.model.reports.probe import Operand, Probe, Role
from noclobber.observe.core.seen.reads import read_by
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import registry
from noclobber.observe.torch_api.tensors import storages, tensor_state
from noclobber.observe.witness.layout import share_bytes

MOST_TRIALS = 64
"""How many tensors are tried one by one where a function keeps tensors that cannot be seen."""
Place = tuple[str, Role]
_REENTRANT = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint."""


@dataclass(eq=False)
class _Save:
    """A tensor that was packed, and what became of it."""

    alias: torch.Tensor
    version: int
    read: bool = False
    by: str = ""

    def moved(self) -> bool:
        return self.alias._version != self.version


@dataclass
class _Call:
    """One call of the function on copies of its arguments: what went in, what came out, and what was saved."""

    function: Callable[..., Any]
    inputs: dict[Place, torch.Tensor] = field(default_factory=dict)
    outputs: dict[Place, torch.Tensor] = field(default_factory=dict)
    leaves: list[torch.Tensor] = field(default_factory=list)
    saves: list[_Save] = field(default_factory=list)
    hidden: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Tensors that a custom Function keeps as attributes: nothing checks their versions."""
    several: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Results that are several views of one tensor: autograd refuses all of them once one or the tensor is written."""
    opaque: bool = False
    """Whether something is kept that cannot be seen: a custom Function is free to keep what it likes."""

    def gradients(self) -> list[torch.Tensor | None]:
        """Run backward from all outputs. Raises what PyTorch raises."""
        roots = [one for one in self.outputs.values() if one.requires_grad]
        with _seeded():
            seeds = [torch.randn_like(one) for one in roots]
        if not any(node.name() == _REENTRANT for node in graph.walk(graph.roots_of(roots))):
            if all(one.layout is torch.strided and not one.is_complex() and not one.is_nested for one in roots):
                # With seeds, `grad` imports sympy: half a second (torch 2.13).
                roots = [(one * seed).sum() for one, seed in zip(roots, seeds, strict=True)]
                return list(torch.autograd.grad(roots, self.leaves, allow_unused=True))
            return list(torch.autograd.grad(roots, self.leaves, seeds, allow_unused=True))
        # It refuses `torch.autograd.grad`. A module in a closure is the caller's own, and so are its gradients.
        leaves = [one for one in read_by(self.function).tensors if one.is_leaf] + self.leaves
        before = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = None
            torch.autograd.backward(roots, seeds)
            return [leaf.grad for leaf in self.leaves]
        finally:
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient

    @property
    def operands(self) -> dict[Place, torch.Tensor]:
        return {**self.inputs, **self.outputs}


def probe(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Probe:
    """Do what `_probed` does, unseen by a session that watches this thread."""
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.apply
    watching = sys.modules.get("noclobber.observe.arming.recorder")
    if watching is None or not watching.is_armed():
        return _probed(function, args, kwargs)
    with watching.apart():
        return _probed(function, args, kwargs)


def _probed(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Probe:
    """Return what one call of a function keeps for backward. Raises what the function raises.

    The call gets copies of its tensors, and a copy of a module, so that nothing of the caller's changes. What the
    function finds in its closure is the caller's own: no gradient of it changes, but batch norm counts the call. If no
    argument requires a gradient, each floating-point argument does.
    """
    names = argument_names(function, args, kwargs)
    every = not any(one.requires_grad for _, one in tensors_in((args, kwargs)))
    called = partial(_called, function, names, args, kwargs, every)
    call = called()
    operands = call.operands
    notes: list[str] = []
    if not call.leaves or not any(one.requires_grad for one in call.outputs.values()):
        plain = tuple(_operand(place, tensor, operands, kept=False) for place, tensor in operands.items())
        return Probe(_title(function), plain, 0, 0, False, notes=("no output has a gradient: nothing is kept",))
    kept, own = _bytes(call)
    if any(one.moved() for one in call.saves):
        notes.append("the call overwrites a tensor that it keeps itself: its backward raises")
    try:
        call.gradients()
    except RuntimeError as error:
        notes.append(f"its backward raises: {' '.join(str(error).splitlines()[:1])}")
    tried: dict[Place, tuple[bool, bool]] = {}
    if call.opaque and any(type(one) in storages.STORED - storages.PLAIN for one in operands.values()):
        notes.append("a custom Function or a checkpoint may keep more: without values, nothing can be tried")
    elif call.opaque and len(operands) <= MOST_TRIALS:
        tried = _trials(partial(called, hooked=False))
    elif call.opaque:
        notes.append(f"a custom Function or a checkpoint may keep more: only up to {MOST_TRIALS} tensors are tried")
    found = []
    for place, tensor in operands.items():
        by, noticed = _keepers(call, tensor)
        wrong, raised = tried.get(place, (bool(by), noticed))
        found.append(_operand(place, tensor, operands, kept=wrong, noticed=raised, by=by if wrong else ()))
    fields = tuple(dict.fromkeys(save.by for save in call.saves if save.by and save.read))
    return Probe(_title(function), tuple(found), kept, own, True, fields, tuple(notes))


def _operand(place: Place, tensor: torch.Tensor, operands: Mapping[Place, torch.Tensor], **facts: Any) -> Operand:
    also = next(name for (name, _), one in operands.items() if one is tensor)
    if also == place[0]:
        also = next((name for (name, _), one in operands.items() if one is not tensor and share_bytes(one, tensor)), "")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(place[0], place[1], tuple(tensor.shape), dtype, also=also, **facts)


def _called(
    function: Callable[..., Any],
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    every: bool,
    *,
    hooked: bool = True,
) -> _Call:
    """Call the function on copies, and note what is saved. Where this is `hooked`, PyTorch checks no version."""
    given: dict[int, torch.Tensor] = {}
    call = _Call(function)

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in given:
            leaf = tensor.detach().clone()
            if tensor.requires_grad or (every and (leaf.is_floating_point() or leaf.is_complex())):
                call.leaves.append(leaf.requires_grad_())
            given[id(tensor)] = leaf.clone()  # a leaf itself could not be written in place
        return given[id(tensor)]

    with torch.enable_grad(), _seeded():
        function = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
        args, kwargs = pytree.tree_map_only(torch.Tensor, copied, (list(args), dict(kwargs)))
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            call.inputs.update({(inner, "input"): tensor for inner, tensor in tensors_in(value, name)})
        if isinstance(function, torch.nn.Module):
            call.inputs.update({(name, "parameter"): one for name, one in function.named_parameters()})
            call.inputs.update({(name, "buffer"): one for name, one in function.named_buffers()})
            call.leaves += [one for one in function.parameters() if one.requires_grad]
        with saved_tensors_hooks(*_hooks(call)) if hooked else nullcontext():
            result = function(*args, **kwargs)
        call.outputs.update({(name, "output"): tensor for name, tensor in tensors_in(result, "result")})
    if hooked:
        _named(call)
    return call


def _hooks(call: _Call) -> tuple[Callable[[torch.Tensor], _Save], Callable[[_Save], torch.Tensor]]:
    def pack(tensor: torch.Tensor) -> _Save:
        alias = tensor.detach()
        call.saves.append(_Save(alias, alias._version))
        return call.saves[-1]

    def unpack(save: _Save) -> torch.Tensor:
        save.read = True
        return save.alias

    return pack, unpack


def _named(call: _Call) -> None:
    """Name what each node keeps, and note what cannot be seen."""
    for tensor in call.outputs.values():
        if tensor.grad_fn is not None and tensor_state.creation_of(tensor) == "MULTI_OUTPUT_NODE":
            call.several.append((f"{tensor.grad_fn.name()}, which returns several views", tensor))
    for node in graph.walk(graph.roots_of(call.outputs.values())):
        for saved in graph.saves_of_or_gone(node):
            packed = graph.content(saved)
            if isinstance(packed, torch.Tensor):  # a Python number, which no hook is given (torch 2.13)
                packed = _Save(packed, packed._version, read=True)
                call.saves.append(packed)
            if isinstance(packed, _Save):
                packed.by = f"{node.name()}.{saved.field}"
            elif packed is not None or graph.released(node):
                call.opaque = True  # else the node keeps nothing here: no gradient needs it
        if isinstance(node, BackwardCFunction):
            call.opaque = True
            for name, value in vars(node).items():
                call.hidden += [(f"{node.name()}.{inner}", tensor) for inner, tensor in tensors_in(value, name)]


def _keepers(call: _Call, tensor: torch.Tensor) -> tuple[tuple[str, ...], bool]:
    """Return what keeps a tensor, and whether PyTorch notices a write to it."""
    tracked = [(save.by, save.alias) for save in call.saves if save.read] + call.several
    before = [alias._version for _, alias in tracked]
    if not tensor.is_inference():
        increment_version(tensor)
    noticed = [by for (by, alias), version in zip(tracked, before, strict=True) if alias._version != version]
    unseen = [by for by, alias in [*tracked, *call.hidden] if share_bytes(alias, tensor)]
    return tuple(dict.fromkeys([*noticed, *unseen])), bool(noticed)


def _bytes(call: _Call) -> tuple[int, int]:
    """Return how many bytes are kept, each storage once, and how many of them are neither input nor output."""
    sizes: dict[int, int] = {}
    for tensor in [*(save.alias for save in call.saves), *(one for _, one in call.hidden)]:
        key = storages.storage_key(tensor)
        if key is not None:
            sizes[key] = storages.storage(tensor).nbytes()
    known = {storages.storage_key(one) for one in call.operands.values()}
    return sum(sizes.values()), sum(size for key, size in sizes.items() if key not in known)


def _trials(again: Callable[[], _Call]) -> dict[Place, tuple[bool, bool]]:
    """Overwrite each tensor in turn and run backward: does the gradient change, or PyTorch raise?"""
    first = again()
    try:
        right = first.gradients()
    except RuntimeError:  # which the caller has noted
        return {}
    repeats = _equal(right, again().gradients())  # else only an error shows anything
    found = {}
    for place in first.operands:
        call = again()
        overwrite(call.operands[place])
        try:
            wrong = not _equal(right, call.gradients()) and repeats
        except RuntimeError:
            found[place] = (True, True)
        else:
            found[place] = (wrong, False)
    return found


def overwrite(tensor: torch.Tensor) -> None:
    """Write other values that are as valid: numbers move by one, and whole numbers, often indices, change places."""
    with torch.no_grad():
        if tensor.layout is not torch.strided:
            tensor.mul_(2)
        elif tensor.dtype is torch.bool:
            tensor.logical_not_()
        elif tensor.is_floating_point() or tensor.is_complex():
            one = tensor[(0,) * tensor.dim()] if 0 in tensor.stride() and tensor.numel() else tensor
            one.add_(1)
        else:
            tensor.copy_(tensor.flatten().roll(1).view(tensor.shape))


def _equal(some: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> bool:
    return all(
        a is b or (a is not None and b is not None and torch.allclose(_dense(a), _dense(b), equal_nan=True))
        for a, b in zip(some, other, strict=True)
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


@contextmanager
def _seeded() -> Iterator[None]:
    """Give every call the same random numbers, and the program its own."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if used else []):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` leaves a traceback for each call (torch 2.13)
        if used:
            torch.cuda.manual_seed_all(0)
        yield


def tensors_in(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in lists, tuples and dicts, each with its name: `tensors[0]`, `state["h"]`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from tensors_in(inner, f"{name}[{index}]")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors_in(inner, f"{name}[{key!r}]")


def argument_names(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the positional arguments: of the signature, else of the operator's schema."""
    if known := _of_schema(function, len(args)):
        return known
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        bound = signature_of(called).bind(*args, **kwargs)
    except (ValueError, TypeError):
        return [f"argument {number}" for number in range(1, len(args) + 1)]
    names: list[str] = []
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}[{index}]" for index in range(len(args) - len(names))]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(name)
    return names[: len(args)]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. Raises ValueError and TypeError.

    `F.max_pool2d` and others choose between two functions and take `*args`: then it is that of one of them (torch 2.13,
    tests/ops/test_explaining.py).
    """
    code = getattr(function, "__code__", None)
    held = dict(zip(code.co_freevars, function.__closure__ or (), strict=False)) if code is not None else {}
    return inspect.signature(held["if_false"].cell_contents if "if_false" in held else function)


def _of_schema(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names by the schema of an operator, or of the operator that a function of torch stands for."""
    if inspect.isbuiltin(function) or inspect.ismethoddescriptor(function):
        function = getattr(torch.ops.aten, function.__name__, function)
    for overload in registry.overloads_of(function):
        names = [one.name for one in overload._schema.arguments]
        if len(names) >= count:
            return names[:count]
    return []


def _title(function: Callable[..., Any]) -> str:
    name = "" if isinstance(function, torch.nn.Module) else getattr(function, "__name__", "")
    return str(name or type(function).__name__)
