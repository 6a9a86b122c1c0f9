"""What a program gets from `watch`, `preserve` and `install`. Printed, it is what the command line prints."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from noclobber import render
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.ledger import Ledger
from noclobber.model.reports.report import Report
from noclobber.model.units import counted, size
from noclobber.processes.block import Blocks
from noclobber.render.judged import calls_in_words
from noclobber.settings.selection import Selection, selected


class PrintedReport(Report):
    """A Report that prints as `noclobber run` prints it, and shows itself in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return render.render(self, "full").rstrip("\n")

    def __repr__(self) -> str:
        return f"<noclobber.Report: {self.counted()}>"

    def _repr_html_(self) -> str:
        return render.part(self)

    def counted(self) -> str:
        """Return "1 finding in 12 backward calls"; those that raised an error are among them. `install` counts none."""
        found, calls = counted(len(self.findings), "finding"), self.coverage.backwards + self.coverage.raised
        return f"{found} in {calls_in_words(calls)}" if self.coverage.saves else found


class PrintedLedger(Ledger):
    """A Ledger that prints as `noclobber run --ledger` prints it, and shows itself in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return render.table(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"<noclobber.Ledger: {size(self.bytes)} in {counted(self.storages, 'storage')}>"

    def _repr_html_(self) -> str:
        return render.preformatted(str(self))


class Reporting:
    """What has a `report`, and shows itself as that report."""

    @property
    def report(self) -> PrintedReport:
        """What was found, with what was watched and what could not be."""
        raise NotImplementedError

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far."""
        return self.report.findings

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"<noclobber.{type(self).__name__}: {self.report.counted()}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def counting(blocks: Blocks) -> Report:
    """Return the report of blocks. What a comment on its line keeps out is suppressed."""
    return selected(blocks.report(), Selection())


def printed(report: Report) -> PrintedReport:
    """Return a report, with its ledger if it has one, as a program gets it."""
    printed = PrintedLedger(**_fields(report.ledger)) if report.ledger is not None else None
    return PrintedReport(**{**_fields(report), "ledger": printed})


def _fields(record: Report | Ledger) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in fields(record)}
