"""The version of noclobber that is installed."""

from __future__ import annotations

FROM_SOURCE = "0+unknown"
"""The version where the source is run as it lies there."""


def version() -> str:
    return installed("noclobber") or FROM_SOURCE


def installed(package: str) -> str:
    """Return the version of a package that is installed; empty if it is not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
