"""The derivative of a program's forward along one direction of its leaves, by forward mode.

Forward mode carries the derivative along with each value and saves nothing, so no write can spoil it, and with reverse
mode off PyTorch refuses no write to a leaf or a view. What a program gives here has to be, along that direction, the
gradient of every program that is to do the same (tests/observe/gradient_trace/test_tangents.py).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.patches import Patches

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_OF_OTHERS = 3e-2
_AT_ONCE = 1 << 20
"""Numbers that are looked at in double precision at a time: a leaf may have many millions."""
Along = tuple[float, float, float]
"""A derivative along the direction; the norm of what it is the sum of, which such a sum is about as large as; and how
exact it is, relative to that."""


class ForwardMode(TorchFunctionMode):
    """Gives each leaf a tangent as it is first used. Once begun it lasts as long as the process.

    `updates`: whether a write to a leaf is an update, after which it is another leaf, or part of what is computed.
    """

    def __init__(self, *, updates: bool) -> None:
        super().__init__()
        self._updates = updates
        self.rewritten = False
        """Whether the program wrote a leaf where gradients would have been recorded."""
        self.given = False
        """Whether a leaf got values there that other leaves have a part in: an update would lose their gradient."""
        self.custom = False
        """Whether it has a say in its gradients, by a custom Function or a hook, which forward mode leaves aside."""
        self._recording = True
        self._inside = 0
        self._leaves: dict[int, tuple[torch.Tensor, int]] = {}
        self._set_recording = private.lookup("_C._set_grad_enabled")
        self._without_tangents = private.lookup("autograd.forward_ad._set_fwd_grad_enabled")
        self._patches = Patches()

    def begin(self) -> None:
        """Turn reverse mode off, whatever the program does, and forward mode on where it would record gradients."""
        torch.set_grad_enabled(False)
        self._patches.put(torch, "is_grad_enabled", self._answer)
        self._patches.put(torch.autograd.Function, "apply", classmethod(self._apply))
        # What requires no gradient takes no hook and keeps no gradient.
        self._patches.put(torch.Tensor, "register_hook", lambda tensor, hook: self._without_hook())
        self._patches.put(torch.Tensor, "retain_grad", lambda tensor: None)
        forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
        self.__enter__()  # type: ignore[no-untyped-call]

    def _is_recording(self) -> bool:
        return self._recording and not torch.is_inference_mode_enabled()

    def _answer(self) -> bool:
        """Whether gradients are recorded: to PyTorch's own functions, which do not come by here, they are not."""
        return not self._inside and self._is_recording()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._inside += 1
        try:
            return self._called(func, args, kwargs or {})
        finally:
            self._inside -= 1

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is self._set_recording:
            self._recording = bool(args[0])
            return None
        # What torch.nn.init does under `no_grad` does not come by here.
        recorded = self._is_recording() and getattr(func, "__module__", "") != "torch.nn.init"
        used = list(_tensors(args, kwargs)) if recorded else []
        for one in used:
            if one.requires_grad and not _is_of_leaf(one):
                self._meet(one)
        given = any(_has_tangent(one) and not _is_on(one, used[0]) for one in used[1:])
        try:
            with nullcontext() if recorded else self._without_tangents(False):
                return _apart(func, args, kwargs)
        finally:
            self._look(recorded, given)

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A custom Function, which mostly knows no forward mode: what its forward computes."""
        self.custom = True
        if function.setup_context is not torch.autograd.Function.setup_context:
            return function.forward(*args, **kwargs)
        context = torch.autograd.function.FunctionCtx()
        context.needs_input_grad = tuple(isinstance(one, torch.Tensor) and one.requires_grad for one in args)  # type: ignore[attr-defined]
        return function.forward(context, *args, **kwargs)

    def _without_hook(self) -> RemovableHandle:
        self.custom = True
        return RemovableHandle(OrderedDict())

    def _look(self, recorded: bool, given: bool) -> None:
        """Forget leaves that were updated, which get another tangent when they are next used."""
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
        """Give a leaf its tangent, if it has none yet."""
        if id(leaf) not in self._leaves:
            value = leaf.detach()
            dual = forward_ad.make_dual(value.clone(), direction(value))  # type: ignore[no-untyped-call]
            leaf.copy_(dual)
            self._leaves[id(leaf)] = leaf, leaf._version


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _is_on(tensor: torch.Tensor, written: torch.Tensor) -> bool:
    """Whether it lies on the memory that is written: Python assigns `w[0] -= 1` back to where it came from."""
    return private.storage_key(tensor) == private.storage_key(written)


def _is_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether it is a view of a leaf with a tangent, which requires a gradient as well where none is recorded."""
    return tensor._is_view() and tensor._base is not None and tensor._base.requires_grad


def _apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator; one that PyTorch refuses as elements share memory, as if they did not.

    What is written gets memory of its own, and what is read is read before (landscape, overlaps; torch 2.13).
    """
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "single memory location" not in str(error) or not args or not isinstance(args[0], torch.Tensor):
            raise
        written, spread = args[0], "more than one element of the written-to" in str(error)
    own = written.clone() if spread else written
    others = [one.clone() if isinstance(one, torch.Tensor) else one for one in args[1:]]
    result = func(own, *others, **kwargs)
    if spread:
        torch.utils.swap_tensors(written, own)  # type: ignore[no-untyped-call]
    return written if result is own else result


def direction(leaf: torch.Tensor) -> torch.Tensor:
    """A direction of a leaf's shape and type: by its bytes, so that two runs give it the same."""
    flat = leaf.detach().reshape(-1)
    made = torch.empty_like(flat)
    for start in range(0, flat.numel(), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        turns = 1.7 * torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.float64, device=part.device)
        if part.is_complex():
            parts = (torch.sin(turns + 7919.0 * one.to(torch.float64)) for one in (part.real, -part.imag))
            made[start : start + _AT_ONCE] = torch.complex(*parts)
        else:
            made[start : start + _AT_ONCE] = torch.sin(turns + 7919.0 * part.to(torch.float64))
    return made.reshape(leaf.shape)


def along(gradient: torch.Tensor, leaf: torch.Tensor) -> Along:
    """What a gradient says of the direction of its leaf."""
    plain = gradient.detach()
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    return _sum(plain, direction(leaf))


def along_roots(roots: Any, given: Any) -> Along | None:
    """The derivative of what a backward call begins from; None where no leaf with a tangent led there.

    `given` are the gradients that it is called with, None for that of a number.
    """
    found = []
    for root, gradient in zip(roots, given, strict=True):
        tangent = forward_ad.unpack_dual(root).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            found.append(_sum(torch.ones_like(tangent) if gradient is None else gradient, tangent))
    return total(found) if found else None


def total(found: list[Along]) -> Along:
    """The sum of several."""
    return sum(one[0] for one in found), math.hypot(*(one[1] for one in found)), max(one[2] for one in found)


def same(right: Along, found: Along) -> bool:
    """Whether two derivatives are the same up to rounding."""
    return abs(right[0] - found[0]) <= max(right[2], found[2]) * max(right[1], found[1])


def _sum(gradient: torch.Tensor, direction: torch.Tensor) -> Along:
    both = (gradient.reshape(-1), direction.reshape(-1))
    within = max(_TOLERANCE.get(one.real.dtype if one.is_complex() else one.dtype, _OF_OTHERS) for one in both)
    wide = torch.complex128 if any(one.is_complex() for one in both) else torch.float64
    value = squares = 0.0
    for start in range(0, both[0].numel(), _AT_ONCE):
        ours, its = (one[start : start + _AT_ONCE].to(wide) for one in both)
        product = (ours.conj() * its).real
        value += float(product.sum())
        squares += float(product.square().sum())
    return value, math.sqrt(squares), within


def _tensors(*values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(*value)
        elif isinstance(value, dict):
            yield from _tensors(*value.values())
