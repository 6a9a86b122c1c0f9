"""How sure a patch is, and what a search for fixes results in: records that need no torch, and travel from the process
that has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.trials.job import Result
from noclobber.model.reports.finding import Finding


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


@dataclass(frozen=True, slots=True)
class Repair:
    """A finding and its fix. `extra`: how many bytes more a backward keeps at its peak, None if unknown.

    `proof` says what was compared, or why nothing could be.
    """

    finding: Finding
    title: str
    extra: int | None
    proof: str
    level: Level = Level.PROVEN
    note: str = ""
    """What another patch would change, although it comes first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One meaning of a write. `gradients` are those of the first backward, in words; `patch` is None for the program as
    it is."""

    title: str
    gradients: str
    patch: Patch | None = None


@dataclass(slots=True)
class Repairs:
    """The result. `left` are findings without a proven patch, each with what was tried and why it failed."""

    patch: Patch = field(default_factory=Patch)
    repairs: list[Repair] = field(default_factory=list)
    left: list[tuple[Finding, list[tuple[str, str]]]] = field(default_factory=list)
    unproven: list[tuple[Repair, Patch]] = field(default_factory=list)
    asked: list[tuple[Finding, list[Reading]]] = field(default_factory=list)
    """Findings that only the author can decide, each with its possible meanings. They are also in `left`."""
    processes: list[str] = field(default_factory=list)
    """The roles of the processes, other than the first, that were searched."""
    elsewhere: str = ""
    """A place that breaks a gradient in a process that left no evidence."""

    def and_more(self, more: Repairs) -> Repairs:
        """Return this with what was then done for another process, by a patch that goes on from this one."""
        for name in ("repairs", "left", "unproven", "asked", "processes"):
            getattr(more, name)[:0] = getattr(self, name)
        return more


@dataclass(frozen=True, slots=True)
class Applied:
    """A hint that was applied. `before` and `after` are the measured peaks in bytes, `proof` says what was compared."""

    finding: Finding
    title: str
    before: int
    after: int
    proof: str


@dataclass(slots=True)
class AppliedHints:
    """The result. `withdrawn` are the hints that were not kept, each with the reason. `peak` is None if unknown.

    `unseen`: what could not be watched.
    """

    unseen: tuple[str, ...] = ()
    patch: Patch = field(default_factory=Patch)
    applied: list[Applied] = field(default_factory=list)
    withdrawn: list[tuple[Finding, str]] = field(default_factory=list)
    peak: int | None = None
