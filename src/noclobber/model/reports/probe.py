"""What a function keeps for backward, tensor by tensor: which may be overwritten, and which may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["input", "output", "parameter", "buffer"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that goes into a function or comes out of it.

    `by` names what keeps it, such as "ExpBackward0.result"; it is empty for a tensor that only a trial shows as kept.
    A kept tensor that is not `noticed` gives a wrong gradient without an error.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    kept: bool
    noticed: bool = True
    by: tuple[str, ...] = ()
    also: str = ""
    """The name of an earlier operand that is the same tensor, or the same memory."""

    @property
    def free(self) -> bool:
        """Return True if the tensor may be overwritten before backward."""
        return not self.kept


@dataclass(frozen=True, slots=True)
class Probe:
    """What one call keeps. `bytes` counts each storage once; `own` is the part that is neither input nor output."""

    call: str
    operands: tuple[Operand, ...]
    bytes: int
    own: int
    differentiable: bool = True
    fields: tuple[str, ...] = ()
    """All that backward reads, by node and field, such as "ExpBackward0.result"."""
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> dict[str, Operand]:
        """Return the tensors that go in, parameters and buffers among them, by name."""
        return {one.name: one for one in self.operands if one.role != "output"}

    @property
    def outputs(self) -> dict[str, Operand]:
        """Return the tensors that come out, by name."""
        return {one.name: one for one in self.operands if one.role == "output"}


@dataclass(frozen=True, slots=True)
class Case:
    """What one way of calling an operator keeps, where the tensors named by `needs` require a gradient.

    `kept` and `free` name tensors of the call. `copied` is true where it keeps memory that is neither.
    """

    call: str
    needs: tuple[str, ...]
    kept: tuple[str, ...]
    free: tuple[str, ...]
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Formula:
    """An entry of PyTorch's derivatives.yaml, and the node that it makes.

    `kept` are the fields that its formulas compute with, `probed` those that the probe found; both sorted.
    """

    node: str
    text: str
    kept: tuple[str, ...]
    probed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperatorPage:
    """All that `noclobber explain OPERATOR` says. `torch` is the version that was asked."""

    name: str
    torch: str
    why: tuple[str, ...]
    cases: tuple[Case, ...]
    in_place: tuple[Case, ...] = ()
    """Of the in-place form. `copied` is true where it keeps a copy of what it overwrites, and so saves no memory."""
    formulas: tuple[Formula, ...] = ()
    notes: tuple[str, ...] = ()
