"""The error that noclobber raises: a RuntimeError whose first line is PyTorch's own message, where PyTorch has one."""

from __future__ import annotations

from noclobber.model.finding import Finding


class ClobberError(RuntimeError):
    """A save was overwritten (at read), or is about to be (`on_write="raise"`). `findings` explain it."""

    findings: tuple[Finding, ...] = ()


class ClobberWarning(UserWarning):
    """A finding about a gradient that PyTorch computed without an error."""


for _public in (ClobberError, ClobberWarning):
    _public.__module__ = "noclobber"
