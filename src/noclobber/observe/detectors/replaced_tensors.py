"""Tensors that a write replaced: hooks that went with the old view, gradients that are those of the new value."""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch

from noclobber.model.events import Read, Tensor, Write
from noclobber.model.silent import LostHook, Overwritten
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.records import Backward, Record, record
from noclobber.observe.core.sites import Place, caller, place_of, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.core.write_log import Look
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import graph, private

if TYPE_CHECKING:
    from noclobber.observe.recorder import Recorder

_ACTIVATIONS = frozenset(
    f"aten::{name}_"
    for name in """
    relu relu6 leaky_relu elu celu selu silu mish hardtanh hardswish hardsigmoid threshold rrelu rrelu_with_noise
    dropout feature_dropout alpha_dropout feature_alpha_dropout
    """.split()  # noqa: SIM905
)
"""What `inplace=True` of torch.nn stands for: the caller goes on with the result, and may keep the input's name."""
_MOST = 64


@dataclass(slots=True, eq=False)
class _Hooked:
    """A view on which a hook was registered; `node` is its node then, `behind` the one that its gradient goes on to."""

    tensor: Tensor
    place: Place | None
    key: int
    storage: Any
    """Tells whether the memory that `key` means is still there."""
    node: int
    behind: int
    write: Record | None = None


class Replaced:
    """What may yet turn out to have been replaced, in one process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooked: list[_Hooked] = []
        self._looking: Look = self._look

    def arm(self, way: Way) -> None:
        """Begin."""
        self._looking = way.entry(self._look)
        self._recorder.calls.watch(way, self._backward_begins)

    def registered(self, tensor: torch.Tensor, place: Place | None) -> None:
        """A hook was registered on a tensor, for which PyTorch has just looked at its node."""
        key = private.storage_key(tensor)
        if key is None or not tensor._is_view() or tensor.grad_fn is None or not tensor.grad_fn.next_functions:
            return
        behind = tensor.grad_fn.next_functions[0][0]
        if behind is not None and len(self._hooked) < _MOST:
            about, number = clobbers.unnamed(tensor), tensor.grad_fn._sequence_nr()
            if not self._hooked:
                self._recorder.attend(self._looking)
            storage = private.storage_ref(tensor)
            self._hooked.append(_Hooked(about, place, key, storage, number, behind._sequence_nr()))

    def _look(self, written: Written, tensor: torch.Tensor, key: int, frame: FrameType) -> None:
        recorder = self._recorder
        for hooked in self._hooked:
            if hooked.key == key and hooked.write is None and not hooked.storage.expired():
                hooked.write = record(written, tensor, key, place_of(frame), recorder.thread.step, recorder.thread)

    def _backward_begins(self, backward: Backward) -> None:
        """Tell of hooks that this backward would have run, and of gradients that are not those of the old value."""
        if self._hooked:
            self._tell_of_hooks(backward)
        if backward.call == "grad":
            for tensor in backward.inputs:
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    self._tell_of_input(tensor, backward)

    def _tell_of_hooks(self, backward: Backward) -> None:
        numbers = {node._sequence_nr() for node in graph.walk(graph.roots_of(backward.outputs))}
        left = []
        for hooked in self._hooked:
            if hooked.behind not in numbers:
                left.append(hooked)
            elif hooked.write is not None and hooked.node not in numbers:
                self._recorder.notice(
                    LostHook(hooked.tensor, site_of(hooked.place), _write(hooked.write, hooked.tensor), _read(backward))
                )
        self._hooked = left
        if not left:
            self._recorder.ignore(self._looking)

    def _tell_of_input(self, tensor: torch.Tensor, backward: Backward) -> None:
        node, key = tensor.grad_fn, private.storage_key(tensor)
        if node is None or key is None:
            return
        number = node._sequence_nr()
        for noted in reversed(self._recorder.memory.recent):
            if noted.node == number and noted.key == key:
                if noted.written.op in _ACTIVATIONS and not _binds_result(noted.place):
                    about = clobbers.tensor_of(tensor, key)
                    self._recorder.notice(Overwritten(about, _write(noted, about), _read(backward)))
                return

    def forget(self) -> None:
        """Drop what waits."""
        self._hooked.clear()
        self._recorder.ignore(self._looking)


def _write(noted: Record, tensor: Tensor) -> Write:
    after = None if noted.version is None else noted.version + 1
    return Write(
        noted.written.op,
        site_of(noted.place),
        version_before=noted.version,
        version_after=after,
        tensor=tensor,
        step=noted.step,
        in_forward=noted.backwards == 0,
    )


def _read(backward: Backward) -> Read:
    call: Literal["backward", "grad"] = "grad" if backward.call == "grad" else "backward"
    return Read("", site_of(backward.place), call)


def _binds_result(place: Place | None) -> bool:
    """Whether the user's call that led to a write binds or returns its result: then the result is what is meant."""
    if place is None:
        return True
    code, called = place[0], place[1]
    following = [one.opname for one in _instructions(code) if one.offset > called][:3]
    for name in following:
        if name.startswith(("STORE_", "RETURN_")):
            return True
        if not name.startswith("LOAD_"):
            return False
    return False


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "NOP", "EXTENDED_ARG")]


def arm(recorder: Recorder, way: Way) -> None:
    """See the hooks that are registered on tensors until the recorder disarms."""
    register: Callable[..., Any] = vars(torch.Tensor)["register_hook"]
    recorder.replaced.arm(way)

    def register_hook(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        handle = register(self, hook)
        way.guarded(lambda: recorder.replaced.registered(self, caller(2)))
        return handle

    register_hook.__doc__ = register.__doc__
    way.patches.put(torch.Tensor, "register_hook", register_hook)
