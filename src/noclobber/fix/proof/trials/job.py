"""What a trial is asked to do, and what it reports at its end: two records that travel in files."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from noclobber.model.plain import built, plain
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report
from noclobber.render.judged import left_out
from noclobber.settings.selection import Selection

Mode = Literal["search", "watch", "bare", "reference", "clones", "derivative", "updated", "moved", "hints", "memory"]
"""search: under watch, for findings, as far as it takes. watch, bare: under watch or under nothing, for gradients.
reference, clones: with what backward needs preserved, or with a clone of whatever is saved, for the right gradients.
derivative, updated: with gradients off, for the loss that a backward begins from and its derivative, where a write to a
leaf is part of what is computed, or makes it another leaf.
moved: under nothing, with the leaves moved, for the loss that a backward begins from.
hints: under watch, for hints; memory: under nothing but PyTorch's profiler, for the peak of memory."""

Right = Literal["full", "step", "backward", "handed", "before", "recast", "returned", "once"]
"""What makes the gradients of a reference right, besides the saves that are kept: nothing else; what reaches back over
a step or into an earlier backward call is left out; hooks and custom backwards get clones of gradients; gradients are
asked for with respect to what activations in place have overwritten; autocast keeps no casts of weights; custom
Functions return clones of views; checkpointed regions are called without `checkpoint`."""

FORWARD: tuple[Mode, ...] = ("derivative", "updated")
"""Those without reverse mode, which end where the backward would begin."""

DYNAMO = "torch._dynamo"
"""What optimizers import when they are made, and what takes as long as torch itself."""


ENTRY = str(Path(__file__).absolute().parents[2] / "__main__.py")
"""What a process of a trial is started with."""
ORDER = "order"
"""The file of a trial's folder that the order is in."""
OUTPUT, ERRORS = "output", "errors"
"""The files in it that its stdout and its stderr go to."""
PROCESSES, RESULTS = "processes", "results"
"""The folders in it that have a file of each process, and what became of each child."""


def put(path: str, text: str) -> None:
    """Write a file: whoever looks finds all of it, or none."""
    with open(f"{path}.unfinished", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.unfinished", path)


class Ended(StrEnum):
    """How a run ended."""

    WELL = "well"
    LIMIT = "limit"
    """Enough backward calls were seen, or the time was over after one."""
    RAISED = "raised"
    EXIT = "exit"
    REFUSED = "refused"
    """There is no such program."""
    TIMEOUT = "timeout"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Order:
    """`served` are texts by the real path of the file that each stands in for."""

    mode: Mode
    backwards: int
    seconds: float
    whole: int = 3
    """At the begin and the end, calls whose gradients are kept whole and not only as sketches."""
    served: dict[str, bytes] = field(default_factory=dict)
    right: Right = "full"
    retaining: bool = False
    selection: Selection = field(default_factory=Selection)
    """Which findings count in a search, and are to be gone with a patch."""
    after: int = 0
    """How many backward calls come before the one whose derivative is measured."""
    step: float | None = None
    """How far leaves are moved, for central differences; None for forward mode."""
    direction: int = 0
    """The number of the direction that they are moved along."""
    is_late: bool = False
    """Whether they are moved only once the calls that come `after` have ended, and not from the first line on."""
    double: bool = False
    """Whether numbers are made in float64 where the program does not say which type they have."""
    fresh: bool = False
    """Whether the program is run by an interpreter that has imported nothing yet, as under `python`."""
    process: str = ""
    """The role of the process whose evidence counts; empty for the first. All processes carry out the order."""

    @staticmethod
    def read(folder: str) -> Order:
        """Return the order of a trial."""
        with open(os.path.join(folder, ORDER), "rb") as file:
            order: Order = pickle.load(file)
        return order


@dataclass(slots=True)
class Result:
    """`calls` backward calls ended well; `found_at` is the one at which the first finding was there.

    `saved`: the most bytes that a backward found saved. `error` is one line; `crash` is noclobber's own failure.
    """

    ended: Ended
    error: str = ""
    crash: str = ""
    torch: bool = True
    calls: int = 0
    found_at: int | None = None
    saved: int | None = None
    peak: int | None = None
    """The most bytes that the allocators had handed out at once, of a run for memory."""
    rewritten: bool = False
    """Whether the program wrote a leaf where gradients would have been recorded, of a run for the derivative."""
    given: bool = False
    """Whether that leaf got values that other leaves have a part in."""
    custom: bool = False
    """Whether it has a say in its gradients, by a custom Function or a hook, which such a run leaves aside."""
    lost: bool = False
    """Whether `.grad` was read of a tensor that is no leaf and keeps none."""
    process: str = ""
    """The role of the process that this is about; empty for the first."""
    elsewhere: str = ""
    """A place that breaks a gradient in another process, and not in this one."""
    checked: int = 0
    """How many backward calls all processes have checked to their end, of a search."""
    unwatched: tuple[str, ...] = ()
    """The processes that were not watched, in words."""
    report: str = ""
    evidence: str = ""
    """The file that the gradients are in."""
    printed: str = ""
    """What went to stdout."""
    files: tuple[str, ...] = ()
    """The program's own files that it had imported by then, the script among them."""

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(plain(self))

    @staticmethod
    def from_json(text: str) -> Result:
        """Read back."""
        result: Result = built(Result, json.loads(text))
        return result

    def _reported(self) -> Report:
        return Report.from_json(self.report) if self.report else Report(())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found of severity error or warning."""
        return tuple(one for one in self._reported().findings if one.severity != "hint")

    @property
    def left_out(self) -> str:
        """How many findings do not count, and why; empty if all count."""
        return left_out(self._reported())

    @property
    def hints(self) -> tuple[Finding, ...]:
        """What a run for hints says about memory."""
        return tuple(one for one in self._reported().findings if one.code == "NC901")

    @property
    def unseen(self) -> tuple[str, ...]:
        """What a run under watch could not see."""
        return self._reported().coverage.unseen

    @property
    def went_through(self) -> bool:
        """Whether nothing stopped the program."""
        return self.ended in (Ended.WELL, Ended.LIMIT)

    def ends_like(self, other: Result) -> bool:
        """Return True if it ended in the same way."""
        return (self.ended, self.error) == (other.ended, other.error)

    @property
    def failure(self) -> str:
        """What stopped the program, as the end of a sentence; empty if nothing did."""
        how = {Ended.RAISED: "the program raises ", Ended.EXIT: "the program ends with "}
        return how.get(self.ended, "") + self.error
