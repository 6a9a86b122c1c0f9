"""What the callbacks for training frameworks share: one watch for all steps, and its report in the log."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any

from noclobber.blocks.watching import watch
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report
from noclobber.render import render

METRIC = "noclobber/findings"
"""What the logs get when a step has found something new: how many findings there are."""


class Watching:
    """What the callbacks are asked for, and what they show of their training."""

    def __init__(self, *, every: int = 100, contents: bool = True) -> None:
        self._training = Training(every, contents)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What all watched steps have found."""
        return self.report.findings

    @property
    def report(self) -> Report:
        """The findings, with what was watched and which steps were not."""
        return self._training.report


class Training:
    """The steps of a training, of which at most one is open. A copy has the same settings and begins empty."""

    def __init__(self, every: int, contents: bool) -> None:
        self._settings = every, contents
        self._seen = watch(contents=contents, every=every)
        self._open = False
        self._told = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Training, self._settings

    def begin(self) -> None:
        """Begin a step. An open one must have been ended."""
        self._seen.__enter__()
        self._open = True

    def end(self, error: BaseException | None = None) -> int:
        """End the open step, if there is one, and explain its error.

        Return how many findings there are now if that is news, else 0. A step that ends well warns of what is new.
        """
        if not self._open:
            return 0
        self._open = False
        self._seen.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        found = len(self.report.findings)
        news, self._told = found > self._told, max(found, self._told)
        return found if news else 0

    @property
    def report(self) -> Report:
        return self._seen.report

    def log(self, log: Callable[..., object], rank: int) -> None:
        """Log the report: rank 0 always, another rank only if it has findings."""
        report = self.report
        if rank and not report.findings:
            return
        text = render(report, "full").rstrip()
        log(WARNING if report.findings else INFO, "%s", f"noclobber on rank {rank}:\n{text}" if rank else text)
