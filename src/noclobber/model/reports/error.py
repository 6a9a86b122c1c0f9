"""The error that noclobber raises: a RuntimeError whose first line is PyTorch's own message, where PyTorch has one."""

from __future__ import annotations

from noclobber.model.reports.finding import Finding


class ClobberError(RuntimeError):
    """A save was overwritten (at read), or is about to be (`on_write="raise"`). `findings` explain it."""

    findings: tuple[Finding, ...] = ()
    handles: set[int] = set()  # noqa: RUF012 - the saves that are explained already; never changed in place on the class

    def __reduce__(self) -> tuple[object, ...]:
        return (ClobberError, self.args, {"findings": self.findings})


class ClobberWarning(UserWarning):
    """A finding about a gradient that PyTorch computed without an error."""


class UnsupportedTorch(RuntimeError):
    """This release of PyTorch lacks something that noclobber needs, or has changed what it means."""


for _public in (ClobberError, ClobberWarning, UnsupportedTorch):
    _public.__module__ = "noclobber"
