"""A block of a program that is watched, and the processes that start in it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace

from noclobber.model.forks import at_fork
from noclobber.model.report import Report, ReportError
from noclobber.processes.member import Member, Order
from noclobber.processes.merging import report_of, with_own
from noclobber.session import Session


class Block:
    """A session that has started, from here to `end`. With `children` it hands on to the processes that start.

    A session that has not started is a block that is over.
    """

    def __init__(self, session: Session, *, children: bool = False) -> None:
        self.session = session
        self._member: Member | None = None
        self._all = Report()
        self._forks = 0
        if session.started and not children:
            _alone.append(self)
            at_fork(before=_before_fork)
        if children:
            order = Order(
                tempfile.mkdtemp(prefix="noclobber-"), session.contents, session.on_write, session.watching, notes=True
            )
            self._member = Member(order, session, [])
            self._member.begin()

    def end(self) -> None:
        """Stop watching, and read what the children have found; a second call does nothing."""
        self.session.stop()
        if self in _alone:
            _alone.remove(self)
        member, self._member = self._member, None
        if member is None:
            return
        member.end()
        member.leave()
        if member.is_first:
            with suppress(OSError, ReportError):
                self._all = report_of(member.order.folder)
            shutil.rmtree(member.order.folder, ignore_errors=True)

    @property
    def of_children(self) -> bool:
        """Return True if another process found something."""
        return any(one.findings for one in self._all.processes if one.parent is not None)

    def report(self) -> Report:
        """Return what this process and its children found."""
        report = with_own(self._all, self.session, {})
        if not self._forks:
            return report
        unseen = f"processes that the block forked ({self._forks}; `children=True` watches them)"
        return replace(report, coverage=replace(report.coverage, unseen=(*report.coverage.unseen, unseen)))

    def forking(self) -> None:
        """Count a child that is about to be forked, and is not watched."""
        self._forks += 1


_alone: list[Block] = []
"""The blocks under way that do not watch children."""


def _before_fork() -> None:
    for block in _alone:
        block.forking()
