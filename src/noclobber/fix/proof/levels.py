"""How sure a patch is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from noclobber.fix.proof.trials.job import Result


class Level(StrEnum):
    """In this order: what a later one says is less."""

    PROVEN = "proven"
    """Its gradients are those of the program with its saves kept, and nothing else that it does is different."""
    CHECKED = "checked"
    """PyTorch refuses the write. The patched program computes what the program computes with gradients off, and its
    gradient is the derivative of that."""
    UNPROVEN = "unproven"
    """Its gradients could not be compared."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run with a patch showed. `right`: nothing contradicts the patch. `clean`: and nothing is left to fix.

    `why` says why the patch is wrong, `proof` why it is right.
    """

    right: bool
    clean: bool = False
    why: str = ""
    proof: str = ""
    level: Level = Level.UNPROVEN
    comparable: bool = False
    """Whether they might have been compared, and those of another patch may be."""
    elsewhere: bool = False
    """Whether the findings that are left are about other writes."""
    differs: bool = False
    """Whether the only problem is that values differ from the reference."""
    of_loss: bool = False
    """Whether the first of these is a loss."""
    result: Result | None = None
