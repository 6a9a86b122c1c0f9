"""Which steps of a training are watched: the first ones, and then some."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from noclobber.model.forks import lock
from noclobber.model.reports.report import Report

Counted = TypeVar("Counted", bound=Report)


class Sampling:
    """Which steps of a training are watched: the first ones, and then `together` in a row of each block of `every`.

    Their place in the block is drawn. With a fixed one, what happens in every second step could be missed for good.
    """

    FIRST = 3

    def __init__(self, every: int, together: int = 1) -> None:
        self._every, self._together = every, together
        self._first = max(self.FIRST, together)
        self._drawn = random.Random(0)  # the program's own generator stays as it is
        self._due = 0
        self._under_way = False
        self.steps = self._watched = 0
        self._counting = lock()

    def begins(self) -> bool:
        """Count a step. Return True if it is to be watched: then `ends` must be called."""
        with self._counting:
            self.steps += 1
            if (self.steps - self._first - 1) % self._every == 0:
                self._due = self.steps + self._drawn.randrange(self._every - self._together + 1)
            is_drawn = self._due <= self.steps < self._due + self._together
            due = (self.steps <= self._first or is_drawn) and not self._under_way
            self._under_way |= due
            self._watched += due
            return due

    def ends(self) -> None:
        """End the watched step."""
        with self._counting:  # `begins` of another thread reads it and writes it
            self._under_way = False

    def counted(self, report: Counted) -> Counted:
        """Return a report which says how many steps were not watched."""
        missed = self.steps - self._watched
        if not missed:
            return report
        unseen = f"{missed:,} of {self.steps:,} steps (`every={self._every}` watches the others)"
        return replace(report, coverage=replace(report.coverage, unseen=(*report.coverage.unseen, unseen)))
