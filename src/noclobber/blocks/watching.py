"""`watch`: what is in a block, or in a function, is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypeVar, overload

from noclobber.blocks import warn
from noclobber.blocks.answers import PrintedLedger, PrintedReport, Reporting, counting, printed
from noclobber.blocks.block import Block
from noclobber.model.reports.ledger import Ledger
from noclobber.processes.block import Blocks
from noclobber.session.sampling import Sampling
from noclobber.session.session import OnWrite, Session

P = ParamSpec("P")
R = TypeVar("R")


class watch(Block, Reporting):
    """Watch a block, or a function: every save and write is recorded, and a changed save is a finding.

    If PyTorch raises an error about the save, `watch` raises a ClobberError that begins with PyTorch's message. If
    PyTorch stays silent, the program goes on, and a ClobberWarning comes at the end of the block. With
    `on_write="raise"` a write to bytes that backward still needs raises a ClobberError at its line, before the bytes
    change. A silent change that could not be stopped raises when backward reads it.

    The bytes that backward reads are compared with the saved bytes. This finds writes that PyTorch does not count or
    does not see: numpy, kernels, other processes. `contents=False` compares only versions: cheaper, and blind to these.

    `children=True` watches the processes that start in the block too, forked or as a new Python. What they found until
    the block ends is in its report and its warning.

    `ledger=True` counts the bytes that saves keep alive; `ledger()` says who kept them when they were the most.

    `hints=True` follows every operator too, which makes a step several times slower. The report then says where an
    in-place write would lower the peak of memory, where one lowers nothing, and where one is harmless.

    `every=100` is for a whole training: put the same object around each step, and it watches the first three steps and
    then one of each hundred, at a place that is drawn. Findings of all steps are in one report, which says how many
    steps were not watched. A step that begins while another one is watched, inside it or in another
    thread, is not watched itself. `every=1` watches all steps. Raises ValueError together with `children`, `ledger` or
    `hints`, and if it is no whole number above 0.

    A `watch` that is entered again goes on: its report is about all its blocks, and each finding is warned of once.

    A block ends in the thread in which it began, as PyTorch keeps hooks per thread. Elsewhere its end raises
    RuntimeError, and the block goes on; if the thread in which it began is over, it may end anywhere.
    """

    _session: Session
    _blocks: Blocks
    _sampling: Sampling | None
    _counts_bytes: bool
    _finds_late: bool
    """Whether the end of a block brings findings that the session does not have: of children, and hints."""
    _told: set[object]
    """The identities of the findings, and the failures, that were warned of."""

    @overload
    def __new__(
        cls,
        *,
        contents: bool = ...,
        on_write: OnWrite = ...,
        children: bool = ...,
        ledger: bool = ...,
        hints: bool = ...,
        every: int | None = ...,
    ) -> Self: ...

    @overload
    def __new__(cls, function: Callable[P, R], /) -> Callable[P, R]: ...  # type: ignore[misc]  # as `@noclobber.watch`

    def __new__(  # type: ignore[misc]
        cls,
        function: Callable[P, R] | None = None,
        /,
        *,
        contents: bool = True,
        on_write: OnWrite = "record",
        children: bool = False,
        ledger: bool = False,
        hints: bool = False,
        every: int | None = None,
    ) -> Any:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number above 0, not {every!r}")
        if every is not None and every > 1 and (children or ledger or hints):
            raise ValueError("every watches some steps only: leave out children, ledger and hints")
        if on_write not in ("record", "raise"):
            raise ValueError(f'on_write must be "record" or "raise", not {on_write!r}')
        self = super().__new__(cls)
        self._session = Session(on_write=on_write, contents=contents, notes=True, counting=ledger, hints=hints)
        self._blocks = Blocks(self._session, children=children)
        self._sampling = Sampling(every) if every is not None and every > 1 else None
        self._open = {}
        self._counts_bytes, self._finds_late = ledger, children or hints
        self._told = set()
        return self if function is None else self(function)

    def _begin(self) -> bool:
        sampling = self._sampling
        if sampling is not None and not sampling.begins():
            return False
        try:
            self._blocks.begin()
        except BaseException:
            if sampling is not None:
                sampling.ends()
            raise
        return True

    def _end(self, is_watched: bool, error: BaseException | None, function: object = None) -> None:
        """Warn of what no earlier end has told, and `error` does not tell."""
        if not is_watched:
            return
        session = self._session
        for _, findings in session.escaped(error) if error is not None else []:
            self._told.update(one.identity() for one in findings)
        self._blocks.end()
        if self._sampling is not None:
            self._sampling.ends()
        failures = [one for one in session.failures if one not in self._told]
        self._told.update(failures)
        warn.of_failures(failures)
        known = {one.identity() for one in session.findings}
        if self._finds_late or not known <= self._told:
            report = counting(self._blocks)
            news = tuple(one for one in report.findings if one.identity() not in self._told)
            self._told |= known | {one.identity() for one in news}
            warn.of_findings(replace(report, findings=news, ledger=None), function, beside=error)

    def ledger(self) -> Ledger:
        """Return who kept the most bytes for backward. Raises ValueError without `ledger=True`."""
        if not self._counts_bytes:
            raise ValueError("this block counts no bytes: write `watch(ledger=True)`")
        return self.report.ledger or PrintedLedger()

    @property
    def report(self) -> PrintedReport:
        """Findings with the coverage: what was watched and what could not be. Comments on lines keep findings out."""
        report = printed(counting(self._blocks))
        return report if self._sampling is None else self._sampling.counted(report)
