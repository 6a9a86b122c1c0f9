"""The blocks of a program that one session watches, and the processes that start in them."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from dataclasses import replace

from noclobber.model.forks import at_fork, lock
from noclobber.model.reports.report import Report, ReportError
from noclobber.processes.member import Member, Order
from noclobber.processes.merging import report_of, with_own
from noclobber.session.session import Session


class Blocks:
    """A session that listens from each `begin` to its `end`. With `children` it hands on to the processes that start.

    Blocks may lie in each other, or in several threads at a time. Each ends in the thread in which it began.
    """

    def __init__(self, session: Session, *, children: bool = False) -> None:
        self.session = session
        self._children = children
        self._open = 0
        self._member: Member | None = None
        self._all = Report()
        self.forks = 0
        """The children that are not watched."""
        self._counting = lock()

    def begin(self) -> None:
        """Watch a block that begins in this thread."""
        self.session.start()
        with self._counting:
            self._open += 1
            if self._open == 1 and self._children:
                self._hand_on()
            elif self._open == 1:
                _alone.append(self)
                at_fork(before=_before_fork)

    def end(self) -> None:
        """End a block. After the last one, read what the children have found; then a call does nothing."""
        self.session.stop()
        with self._counting:
            if self._open != 1:
                self._open = max(0, self._open - 1)
                return
            self._open = 0
            if self._member is None:
                _alone.remove(self)
            else:
                self._gather(self._member)

    def _hand_on(self) -> None:
        if self._member is None or self._member.in_child:
            folder = tempfile.mkdtemp(prefix="noclobber-")
            weakref.finalize(self, _remove, folder, os.getpid())
            self._member = Member(Order(folder, self.session.handed_on()), self.session, [])
        self._member.begin()

    def _gather(self, member: Member) -> None:
        member.end()
        member.leave()
        if member.is_first:
            with suppress(OSError, ReportError):
                self._all = report_of(member.order.folder)

    @property
    def of_children(self) -> bool:
        """Return True if another process found something."""
        return any(one.findings for one in self._all.processes if one.parent is not None)

    def report(self) -> Report:
        """Return what this process and its children found."""
        report = with_own(self._all, self.session, {})
        if not self.forks:
            return report
        unseen = f"processes that the block forked ({self.forks}; `children=True` watches them)"
        return replace(report, coverage=replace(report.coverage, unseen=(*report.coverage.unseen, unseen)))


_alone: list[Blocks] = []
"""Those with a block under way that do not watch children."""


def _before_fork() -> None:
    for blocks in _alone:
        blocks.forks += 1


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
