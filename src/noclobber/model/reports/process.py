"""Process: one process of a run, and what became of it. A report lists them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from noclobber.model.units import few, listed

State = Literal["ended", "running", "lost"]
"""What is known of its end: it ended by itself, it still ran, or it was ended by a signal (SIGKILL, out of memory)."""
LONGEST = 100
"""Characters of a command line that are shown."""
MOST_NAMED = 3
"""Processes that are named one by one."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `id` is unique among the machines of a run, `pid` is not.

    `parent` is the id of the process that started it, None if no watched process did. `name` is multiprocessing's,
    "SpawnProcess-1"; `worker` is the number of a data loader's worker. `torch` is the release that was watched, None if
    torch was never imported or not watched: then `why` says so. A process without torch has neither.
    `findings` counts what differs.
    """

    id: str
    parent: str | None
    pid: int
    host: str
    command: tuple[str, ...]
    name: str = ""
    rank: int | None = None
    world: int | None = None
    worker: int | None = None
    torch: str | None = None
    python: str | None = None
    why: str = ""
    state: State = "ended"
    status: int | None = None
    findings: int = 0

    @property
    def watched(self) -> bool:
        """Return True if noclobber saw what torch did there."""
        return self.torch is not None

    @property
    def counts(self) -> bool:
        """Return True if a reader must know whether it was watched: it imported torch, or may have."""
        return self.watched or bool(self.why)

    def described(self) -> str:
        """Return what a reader knows it by: "rank 1", "data loader worker 3 of rank 1 (pid 4711)"."""
        alone = self.worker is None and (self.rank is not None or (not self.name and self.parent is None))
        return self.role() if alone else f"{self.role()} (pid {self.pid})"

    def role(self) -> str:
        """Return what it is in each run of the program: "rank 1", "data loader worker 3 of rank 1"."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        if self.worker is not None:
            return f"data loader worker {self.worker}{rank and f' of {rank}'}"
        if rank:
            return rank
        if self.name:
            return f"`{self.name}`"
        return "the main process" if self.parent is None else f"`{self.typed()}`"

    def typed(self) -> str:
        """Return the command line on one line, cut if it is long: `-c` may hold a whole program."""
        words = " ".join(" ".join(self.command).split())
        return words if len(words) <= LONGEST else f"{words[: LONGEST - 4]} ..."


def together(processes: Sequence[Process]) -> str:
    """Return where something was seen: "on ranks 0 to 7", "in `SpawnProcess-1` (pid 4711) and 3 more"."""
    if all(one.rank is not None and one.worker is None for one in processes):
        return f"on {ranks_of({one.rank for one in processes})}"
    names = list(dict.fromkeys(one.described() for one in processes))
    return f"in {listed(few(names, MOST_NAMED))}"


def ranks_of(ranks: Iterable[int | None]) -> str:
    """Return ranks in words: "rank 1", "ranks 0 and 2", "ranks 0 to 3, 5 and 7"."""
    runs: list[list[int]] = []
    for rank in sorted(rank for rank in ranks if rank is not None):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"{'ranks' if len(parts) > 1 or ' ' in parts[0] else 'rank'} {listed(parts)}"
