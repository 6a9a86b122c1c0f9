"""`tensor.data = other`: no operator runs and no version moves, so the property itself is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from noclobber.observe import internals, saves
from noclobber.observe.records import record
from noclobber.observe.sites import caller
from noclobber.observe.writes import Written

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder

_ASSIGNED = Written("data=", (), True)


def arm(recorder: Recorder) -> None:
    """See every assignment until the recorder disarms."""
    native: Any = torch._C.TensorBase.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        _assigned(recorder, tensor, lambda: native.__set__(tensor, value))

    data = property(native.__get__, set_data, native.__delete__, native.__doc__)
    recorder.patches.put(torch.Tensor, "data", data)


def _assigned(recorder: Recorder, tensor: torch.Tensor, assign: Callable[[], None]) -> None:
    """An input that was saved is now backed by the other's bytes, and nothing counts it.

    PyTorch keeps the TensorImpl of an input, so backward reads the new bytes; an output's save keeps the old ones.
    """
    key = internals.storage_key(tensor) if recorder.thread.entered else None
    handles = [handle for handle in recorder.live.at(key) if handle.tensor() is tensor] if key else []
    if handles and not tensor._is_view() and tensor.grad_fn is not None:
        producer = tensor.grad_fn._sequence_nr()
        handles = [handle for handle in handles if handle.node != producer]
    if not handles:
        assign()
        return
    noted = record(_ASSIGNED, tensor, key or 0, caller(1), recorder.thread.step, len(recorder.backwards))
    recorder.meet(handles, tensor, noted)
    assign()
    for handle in handles:
        handle.alias = saves.alias_of(tensor)
