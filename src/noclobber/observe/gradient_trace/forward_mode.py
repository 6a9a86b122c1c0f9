"""Computes the derivative of a program's forward along one direction of its leaves, by forward mode or by central
differences.

Forward mode carries the derivative along with each value and saves nothing, so no write can spoil it. With reverse mode
off, PyTorch refuses no write to a leaf or a view. A program that computes the same must have this derivative: its
gradient along that direction must be equal (tests/observe/gradient_trace/test_tangents.py).
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import graph
from noclobber.observe.torch_api.dispatch import modes
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.torch_api.tensors.local_numbers import dense, parts
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in, whole

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_OF_OTHERS = 3e-2
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
DIRECTIONS = 3
"""Along how many directions a gradient is measured."""
_AT_ONCE = 1 << 20
"""How many numbers are converted to double precision at a time: a leaf may have many millions."""
Along = tuple[float, float, float]
"""A derivative along the direction, with what is needed to compare it.

It is a sum of products. The second number is the norm of the products, which is the size to expect of such a sum. The
third is the tolerance, relative to that norm.
"""


class ForwardMode(TorchFunctionMode):
    """Gives each leaf a tangent when the leaf is first used. Once begun, it lasts as long as the process.

    With `updates`, a write to a leaf is an update that makes it another leaf; without, it is part of the computation.
    """

    def __init__(self, *, updates: bool) -> None:
        super().__init__()
        self._updates = updates
        self.rewritten = False
        """True if the program wrote to a leaf where gradients would have been recorded."""
        self.given = False
        """True if such a write gave a leaf values computed from other leaves: an update would lose their gradient."""
        self.custom = False
        """True if the program changes gradients itself, by a custom Function or a hook, or carries a graph over from an
        earlier backward call. Forward mode ignores all three."""
        self._recording = True
        self._inside = 0
        self._leaves: dict[int, tuple[torch.Tensor, int]] = {}
        self._set_recording = private.lookup("_C._set_grad_enabled")
        self._is_on = torch.is_grad_enabled
        self._without_tangents = private.lookup("autograd.forward_ad._set_fwd_grad_enabled")
        self._patches = Patches()

    def begin(self) -> None:
        """Turn reverse mode off for good, and forward mode on wherever the program would record gradients."""
        torch.set_grad_enabled(False)
        self._patches.put(torch, "is_grad_enabled", self._answer)
        self._patches.put(torch.autograd.Function, "apply", classmethod(self._apply))
        # With reverse mode off a computed tensor requires no gradient, and PyTorch would refuse both calls.
        self._patches.put(torch.Tensor, "register_hook", lambda tensor, hook: self._without_hook())
        self._patches.put(torch.Tensor, "retain_grad", lambda tensor: None)
        self._enter()
        self.__enter__()  # type: ignore[no-untyped-call]

    def _enter(self) -> None:
        forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]

    def _is_recording(self) -> bool:
        return self._recording and not torch.is_inference_mode_enabled()

    def _answer(self) -> bool:
        """Return what `torch.is_grad_enabled` must tell the program. Inside PyTorch's own functions it is False."""
        if modes.transforms_active():
            return self._is_on()
        return not self._inside and self._is_recording()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self._inside += 1
        try:
            return self._called(func, args, kwargs or {})
        finally:
            self._inside -= 1

    def _called(self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a torch function: give new leaves among its arguments their tangent, and see if it writes to a leaf.

        Inside a transform of torch.func reverse mode stays on: the gradient is then a value that the program computes
        with (torch 2.13; tests/observe/gradient_trace/test_tangents.py).
        """
        if modes.transforms_active():
            return func(*args, **kwargs)
        if func is self._set_recording:
            self._recording = bool(args[0])
            return None
        if func == _DATA:
            for leaf in tensors_in(args, kwargs):
                self._hand_out(leaf)
            return func(*args, **kwargs)
        # torch.nn.init turns gradients off itself, and that call is not seen here.
        recorded = self._is_recording() and getattr(func, "__module__", "") != "torch.nn.init"
        used = list(tensors_in(args, kwargs)) if recorded else []
        for tensor in used:
            if tensor.requires_grad and not _is_of_leaf(tensor):
                # What a backward call before left, if it is no leaf, leads into a graph that is not looked at.
                self.custom |= graph.maker_of(tensor) is not None
                self._meet(tensor)
            elif not tensor.requires_grad and id(tensor) in self._leaves:
                self._leave(tensor)
        self._begun(func, used)
        given = any(_has_tangent(tensor) and not is_on(tensor, used[0]) for tensor in used[1:])
        try:
            with nullcontext() if recorded else self._without_tangents(False):
                result: Any = _apart(func, args, kwargs)
        finally:
            self._look(recorded, given)
        if recorded and func is torch.nn.functional.embedding:
            self.looked_up(result, args, kwargs)
        return result

    def looked_up(self, rows: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called with the rows that a call of `embedding` has given. Its backward gives the row of the padding no
        gradient, though the result depends on it, and may scale all others (torch 2.13;
        tests/observe/gradient_trace/test_tangents.py)."""
        (indices, weight), padding = args, kwargs["padding_idx"]
        self.custom |= bool(kwargs["scale_grad_by_freq"])
        if padding is not None:
            self._pad(rows, indices == padding % len(weight), weight, padding)

    def _pad(self, rows: torch.Tensor, is_padding: torch.Tensor, _: torch.Tensor, row: int) -> None:
        """Make the rows that an embedding pads with constants, which are a row of its weight."""
        if (tangent := forward_ad.unpack_dual(rows).tangent) is not None:  # type: ignore[no-untyped-call]
            tangent.masked_fill_(is_padding.unsqueeze(-1), 0)

    def _begun(self, func: Callable[..., object], used: list[torch.Tensor]) -> None:
        """Called before each call in which gradients would be recorded, with the tensors that it uses."""

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> object:
        """Return what the forward of a custom Function computes. Most custom Functions do not support forward mode."""
        self.custom = True
        if function.setup_context is not torch.autograd.Function.setup_context:
            return function.forward(*args, **kwargs)
        context = torch.autograd.function.FunctionCtx()
        needed = tuple(isinstance(argument, torch.Tensor) and argument.requires_grad for argument in args)
        context.needs_input_grad = needed  # type: ignore[attr-defined]
        return function.forward(context, *args, **kwargs)

    def _without_hook(self) -> RemovableHandle:
        self.custom = True
        return RemovableHandle(OrderedDict())

    def _look(self, recorded: bool, given: bool) -> None:
        """Record the leaves that a call wrote to. Forget updated leaves, which get a new tangent when used again.

        `recorded` says whether gradients would have been recorded, `given` whether other arguments had a tangent.
        """
        for key, (leaf, version) in list(self._leaves.items()):
            if leaf._version == version:
                continue
            self.rewritten |= recorded
            self.given |= recorded and given
            if recorded and not self._updates:
                self._leaves[key] = leaf, leaf._version
            else:
                del self._leaves[key]

    def _meet(self, leaf: torch.Tensor) -> None:
        """Give a leaf its tangent if it has none yet."""
        if id(leaf) not in self._leaves:
            value = leaf.detach()
            dual = forward_ad.make_dual(value.clone(), direction(value))  # type: ignore[no-untyped-call]
            leaf.copy_(dual)
            self._leaves[id(leaf)] = leaf, leaf._version

    def _hand_out(self, leaf: torch.Tensor) -> None:
        """Called before the program takes `leaf.data`. It may write there unseen, as no version counts it, and the
        direction of a leaf follows from its values: its next use gives it a new one."""
        self._leaves.pop(id(leaf), None)

    def _leave(self, leaf: torch.Tensor) -> None:
        """Take the tangent from a leaf that was frozen after its first use, as by the constructor of its module."""
        del self._leaves[id(leaf)]
        leaf.copy_(forward_ad.unpack_dual(leaf).primal.clone())  # type: ignore[no-untyped-call]


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def is_on(tensor: torch.Tensor, written: torch.Tensor) -> bool:
    """Return True if a tensor is on the memory that is written. For `w[0] -= 1` Python assigns the result to `w[0]`."""
    return storages.storage_key(tensor) == storages.storage_key(written)


def _is_of_leaf(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is a view of a leaf: it requires a gradient too, even where none is recorded."""
    base = tensor._base
    return base is not None and base.requires_grad and base.is_leaf


def _apart(func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call an operator. If PyTorch refuses to detach a view in place, take the tangents out of that part of the memory.

    If PyTorch refuses a call because elements share memory, call it as if they did not. Then the written tensor
    gets memory of its own, and the tensors that are read are copied first (torch 2.13;
    tests/observe/gradient_trace/test_tangents.py).
    """
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "Can't detach views in-place" in str(error):
            (view,) = args
            return view.copy_(view.detach())  # type: ignore[attr-defined]
        if "single memory location" not in str(error) or not args or not isinstance(args[0], torch.Tensor):
            raise
        written, spread = args[0], "more than one element of the written-to" in str(error)
    own = written.clone() if spread else written
    others = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in args[1:]]
    result = func(own, *others, **kwargs)
    if spread:
        torch.utils.swap_tensors(written, own)  # type: ignore[no-untyped-call]
    return written if result is own else result


def direction(leaf: torch.Tensor, number: int = 0) -> torch.Tensor:
    """Return a direction for a leaf, with its shape and dtype; another one for each `number`. It is computed from the
    leaf's values, so two runs give equal leaves the same direction."""
    if wrapped := parts(leaf):
        made = leaf.detach().clone()
        for one, own in zip(wrapped, parts(made), strict=True):
            own.copy_(direction(one, number))
        return made
    flat = leaf.detach().reshape(-1)
    made = torch.empty_like(flat)
    for start in range(0, flat.numel(), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        turns = (1.7 + 0.9 * number) * torch.arange(
            start + 1, start + 1 + part.numel(), dtype=torch.float64, device=part.device
        )
        if part.is_complex():
            both = (torch.sin(turns + 7919.0 * one.to(torch.float64)) for one in (part.real, -part.imag))
            made[start : start + _AT_ONCE] = torch.complex(*both)
        else:
            made[start : start + _AT_ONCE] = torch.sin(turns + 7919.0 * part.to(torch.float64))
    return made.reshape(leaf.shape)


def along(gradient: torch.Tensor, leaf: torch.Tensor, number: int = 0) -> Along:
    """Return the derivative that a gradient gives along a direction of its leaf."""
    return _sum(gradient, direction(leaf, number))


def along_roots(roots: Iterable[torch.Tensor], given: Iterable[torch.Tensor | None]) -> Along | None:
    """Return the derivative of what a backward call starts from; None where no leaf with a tangent led there.

    `given` are the gradients that the program passes to the call, None for that of a scalar.
    """
    found = []
    for root, gradient in zip(roots, given, strict=True):
        tangent = forward_ad.unpack_dual(root).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            found.append(_sum(torch.ones_like(tangent) if gradient is None else gradient, tangent))
    return total(found) if found else None


def weighed(roots: Iterable[torch.Tensor], given: Iterable[torch.Tensor | None]) -> float:
    """Return what a backward call differentiates, as one number: roots times the gradients that are passed to it."""
    pairs = list(zip(roots, given, strict=True))
    return sum(_sum(torch.ones_like(root) if gradient is None else gradient, root)[0] for root, gradient in pairs)


def total(found: list[Along]) -> Along:
    """Return the sum of several derivatives."""
    return sum(part[0] for part in found), math.hypot(*(part[1] for part in found)), max(part[2] for part in found)


def same(right: Along, found: Along) -> bool:
    """Return True if two derivatives are equal up to rounding."""
    return abs(right[0] - found[0]) <= max(right[2], found[2]) * max(right[1], found[1])


def _sum(gradient: torch.Tensor, direction: torch.Tensor) -> Along:
    """Return the sum of the products of a gradient and a direction."""
    both = (dense(gradient).reshape(-1), dense(direction).reshape(-1))
    within = max(_TOLERANCE.get(one.real.dtype if one.is_complex() else one.dtype, _OF_OTHERS) for one in both)
    wide = torch.complex128 if any(one.is_complex() for one in both) else torch.float64
    value = squares = 0.0
    for start in range(0, both[0].numel(), _AT_ONCE):
        ours, its = (one[start : start + _AT_ONCE].to(wide) for one in both)
        product = (ours.conj() * its).real
        value += float(product.sum())
        squares += float(product.square().sum())
    return value, math.sqrt(squares), within


class Precision(NamedTuple):
    """How far the leaves are moved, and the tolerance of the derivative, relative to the size to expect of it.

    The error of a central difference is the square of the step, and the rounding of the loss divided by the step. A
    kink, as of relu, that lies within a step adds an error too: the shorter the step, the fewer do.
    """

    step: float
    within: float


_PRECISIONS = {torch.float64: (Precision(1e-5, 1e-5), Precision(1e-7, 1e-5)), torch.float32: (Precision(4e-3, 1e-2),)}
"""By the type of the loss. The second is tried where the first does not agree."""


class Moved(ForwardMode):
    """Moves each leaf when the leaf is first used: by `step` along a direction. With a step of 0 the program computes
    what it computes with gradients off. It serves programs with an operator that has no derivative by forward mode:
    they run with their leaves moved along the direction, and once more the other way (tests/fix/test_checked.py).

    With `updates`, a leaf that is written lies at its own place for the write, and is moved when it is next used.
    """

    def __init__(self, *, updates: bool, step: float, number: int) -> None:
        super().__init__(updates=updates)
        self._step, self._number = step, number
        self._places: dict[int, torch.Tensor] = {}

    def _enter(self) -> None:
        pass

    def _meet(self, leaf: torch.Tensor) -> None:
        if id(leaf) not in self._leaves:
            self._leaves[id(leaf)] = leaf, leaf._version
            if self._step:
                self._places[id(leaf)] = leaf.detach().clone()
                leaf.data.add_(direction(leaf, self._number), alpha=self._step)

    def _leave(self, leaf: torch.Tensor) -> None:
        del self._leaves[id(leaf)]
        if (place := self._places.pop(id(leaf), None)) is not None:
            leaf.data.copy_(place)

    def _hand_out(self, leaf: torch.Tensor) -> None:
        if id(leaf) in self._leaves:
            self._leave(leaf)

    def _pad(self, rows: torch.Tensor, is_padding: torch.Tensor, weight: torch.Tensor, row: int) -> None:
        if (place := self._places.get(id(weight))) is not None:
            rows.data[is_padding] = place[row]

    def _begun(self, func: Callable[..., object], used: list[torch.Tensor]) -> None:
        """Put a leaf back that is about to be written, if the write makes it another leaf."""
        if not self._updates or not used or not _writes(func):
            return
        for key, (leaf, _) in list(self._leaves.items()):
            if is_on(leaf, used[0]) and (place := self._places.pop(key, None)) is not None:
                leaf.data.copy_(place)


class MovedAtFirst(Moved):
    """The same in a program that records its gradients as ever: it may need some for what it computes next. Leaves are
    moved from `move` on.

    It is `given` where a leaf is written, with gradients off, what was made of others that require one. If leaves are
    moved late, what was computed before counts as constant: then nothing may be computed with gradients off of what
    requires one, but of the leaves that are written so.
    """

    def __init__(self, *, step: float, number: int, is_late: bool) -> None:
        super().__init__(updates=False, step=step, number=number)
        self._moves, self._is_late = False, is_late
        self._read, self._wrote = set[int](), set[int]()
        self._known: dict[int, torch.Tensor] = {}
        """The tensors that require a gradient of these ids: held, so that no other tensor gets one of them."""
        self._made_of: dict[int, tuple[weakref.ref[torch.Tensor], set[int]]] = {}
        """Of what was computed with gradients off: what that was made of, by these ids."""

    def begin(self) -> None:
        """Look at each call from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def move(self) -> None:
        """Move leaves from now on."""
        self._moves = True

    def _called(self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        used, is_off = list(tensors_in(args, kwargs)), not torch.is_grad_enabled()
        written = list(tensors_in(args[:1])) if is_off and _writes(func) else []
        targets = set(map(id, written))
        for tensor in used:
            if getattr(func, "__name__", "") == "detach" or id(tensor) in targets:
                continue  # no gradient of a leaf comes from there
            if self._moves and not tensor._is_view() and tensor.requires_grad and tensor.is_leaf:
                self._meet(tensor)
            elif not tensor.requires_grad and id(tensor) in self._leaves:
                self._leave(tensor)
        made_of = set[int]().union(*map(self._sources, used)) if is_off else set[int]()
        into = {id(base) for one in written if (base := whole(one)).is_leaf and base.requires_grad}
        if self._is_late:
            self._read |= made_of
            self._wrote |= into
            self.given = not self._read <= self._wrote
        elif into:
            self.given |= not made_of <= into
        try:
            result: Any = func(*args, **kwargs)
        finally:
            self._look(recorded=False, given=False)  # a leaf that gets its first values here is moved again
        if made_of and isinstance(result, torch.Tensor) and not result.requires_grad:
            self._made_of[id(result)] = weakref.ref(result), made_of
        if func is torch.nn.functional.embedding:
            self.looked_up(result, args, kwargs)
        return result

    def _sources(self, tensor: torch.Tensor) -> set[int]:
        if tensor.requires_grad:
            base = whole(tensor)
            self._known[id(base)] = base
            return {id(base)}
        known = self._made_of.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else set()


def _writes(func: Callable[..., object]) -> bool:
    """Return True if a torch function writes its first argument, by its name."""
    name = getattr(func, "__name__", "")
    dunder = name.startswith("__")
    return name == "__setitem__" or (name.startswith("__i") if dunder else name.endswith("_"))


def precisions_of(call: dict[str, Any]) -> tuple[Precision, ...]:
    """Return the precisions for the loss of a backward call; none where its dtype is too coarse."""
    known = [_PRECISIONS.get(root.dtype, ()) for root in call["roots"] if isinstance(root, torch.Tensor)]
    return max(known, key=lambda some: some[0].step) if known and all(known) else ()


def derivative(ahead: float, behind: float, precision: Precision) -> Along:
    """Return the derivative from the losses of two runs whose leaves were moved by a step."""
    return (ahead - behind) / (2 * precision.step), 0.0, precision.within
