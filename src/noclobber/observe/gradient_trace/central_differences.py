"""Computes the derivative of a program's forward along one direction of its leaves, by central differences.

It serves programs with an operator that has no derivative by forward mode. The program runs with its leaves moved along
the direction, and once more with the leaves moved the other way (tests/fix/test_checked.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from noclobber.observe.gradient_trace.forward_mode import Along, ForwardMode, direction, is_on
from noclobber.observe.torch_api.tensors.tensor_state import tensors_in

if TYPE_CHECKING:
    from noclobber.observe.gradient_trace.evidence import Event


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
    what it computes with gradients off.

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
    """The same in a program that records its gradients as ever: it may need some for what it computes next."""

    def begin(self) -> None:
        """Move leaves from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def _called(self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        for tensor in tensors_in(args, kwargs):
            if not tensor._is_view() and tensor.requires_grad and tensor.is_leaf:
                self._meet(tensor)
            elif not tensor.requires_grad and id(tensor) in self._leaves:
                self._leave(tensor)
        try:
            result: Any = func(*args, **kwargs)
        finally:
            self._look(recorded=False, given=False)  # a leaf that gets its first values here is moved again
        if func is torch.nn.functional.embedding:
            self.looked_up(result, args, kwargs)
        return result


def _writes(func: Callable[..., object]) -> bool:
    """Return True if a torch function writes its first argument, by its name."""
    name = getattr(func, "__name__", "")
    dunder = name.startswith("__")
    return name == "__setitem__" or (name.startswith("__i") if dunder else name.endswith("_"))


def precisions_of(call: Event) -> tuple[Precision, ...]:
    """Return the precisions for the loss of a backward call; none where its dtype is too coarse."""
    known = [_PRECISIONS.get(root.dtype, ()) for root in call["roots"] if isinstance(root, torch.Tensor)]
    return max(known, key=lambda some: some[0].step) if known and all(known) else ()


def derivative(ahead: float, behind: float, precision: Precision) -> Along:
    """Return the derivative from the losses of two runs whose leaves were moved by a step."""
    return (ahead - behind) / (2 * precision.step), 0.0, precision.within
