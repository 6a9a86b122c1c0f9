"""A block of a program that is watched, and the processes that start in it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress

from noclobber.model.report import Report, ReportError
from noclobber.processes.member import Member, Order
from noclobber.processes.merging import report_of, with_own
from noclobber.session import Session


class Block:
    """A session that has started, from here to `end`. With `children` it hands on to the processes that start."""

    def __init__(self, session: Session, *, children: bool = False) -> None:
        self.session = session
        self._member: Member | None = None
        self._all = Report()
        if children:
            order = Order(
                tempfile.mkdtemp(prefix="noclobber-"), session.contents, session.on_write, session.watching, notes=True
            )
            self._member = Member(order, session, [])
            self._member.begin()

    def end(self) -> None:
        """Stop watching, and read what the children have found; a second call does nothing."""
        self.session.stop()
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
        return with_own(self._all, self.session, {})
