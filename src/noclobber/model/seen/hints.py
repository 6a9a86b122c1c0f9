"""What a program could write in place, and what it writes in place already: measured, for the rules of hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from noclobber.model.seen.events import Tensor
from noclobber.model.source import Site


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a program asks for an operator: by an expression, by a function with a flag `inplace`, or by a module.

    `name` is that of the function or of the module's class, and empty for an expression. `inner`: the program calls the
    module as a part of another module.
    """

    how: Literal["expression", "function", "module"]
    name: str = ""
    inner: bool = False


@dataclass(frozen=True, slots=True)
class Opportunity:
    """An operator that made a new tensor each time, though its input was never needed again and could have held it.

    `argument` is the position of that input, `tensor` is one of them. `peak` is the most bytes that tensors took.
    `bytes` says how far it falls if this operator writes in place after those that were listed before, and `alone` how
    far if it is the only one. `numbers`: the other operands are plain numbers. Tensors have no names here.
    """

    op: str
    write: Site
    tensor: Tensor
    argument: int
    bytes: int
    alone: int
    peak: int
    times: int
    spelling: Spelling
    numbers: bool = False


@dataclass(frozen=True, slots=True)
class InPlaceCall:
    """An operator that writes in place. `bytes` is the most that one call wrote.

    `rise`: how far the peak would rise out of place. `copied`: the bytes of the clone that autograd keeps of what is
    overwritten, 0 if it keeps none. `saved`: something that was overwritten had been saved.
    """

    op: str
    write: Site
    tensor: Tensor
    bytes: int
    rise: int
    copied: int
    saved: bool
    times: int


Hint = Opportunity | InPlaceCall
