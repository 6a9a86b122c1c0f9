"""Finds gradients that the program asks for with respect to a tensor that an activation overwrote.

Such a gradient is that of the new value, not of the value that the name held before.
"""

from __future__ import annotations

import dis
from types import CodeType

import torch

from noclobber.model.operators import ACTIVATIONS
from noclobber.model.silent import Overwritten
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.records import Backward
from noclobber.observe.core.sites import Place
from noclobber.observe.describe import clobbers
from noclobber.observe.describe.clobbers import read_of, write_of
from noclobber.observe.torch_api import private

_ACTIVATIONS = frozenset(f"aten::{name}_" for name in ACTIVATIONS)


def arm(context: Context, way: Way) -> None:
    """Check the inputs that each call of `torch.autograd.grad` asks gradients for."""

    def begin(backward: Backward) -> None:
        for tensor in backward.inputs if backward.call == "grad" else ():
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                _tell_of_input(context, tensor, backward)

    context.calls.watch_special(way, begin)


def _tell_of_input(context: Context, tensor: torch.Tensor, backward: Backward) -> None:
    """Report an input that an activation overwrote last, unless the program binds or returns the new value."""
    node, key = tensor.grad_fn, private.storage_key(tensor)
    if node is None or key is None:
        return
    number = node._sequence_nr()
    for noted in reversed(context.memory.recent):
        if noted.node == number and noted.key == key:
            if noted.written.op in _ACTIVATIONS and not _binds_result(noted.place):
                about = clobbers.tensor_of(tensor)
                context.bus.notice(Overwritten(about, write_of(noted, about), read_of(backward)))
            return


def _binds_result(place: Place | None) -> bool:
    """Return True if the user's call that wrote binds or returns its result: then the program means the new value.

    Also True where the place of the write is not known.
    """
    if place is None:
        return True
    code, called = place[0], place[1]
    following = [instruction.opname for instruction in _instructions(code) if instruction.offset > called][:3]
    for name in following:
        if name.startswith(("STORE_", "RETURN_")):
            return True
        if not name.startswith("LOAD_"):
            return False
    return False


def _instructions(code: CodeType) -> list[dis.Instruction]:
    skipped = ("CACHE", "NOP", "EXTENDED_ARG")
    return [instruction for instruction in dis.get_instructions(code) if instruction.opname not in skipped]
