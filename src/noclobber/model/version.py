"""The version of noclobber that is installed."""

from __future__ import annotations

FROM_SOURCE = "0+unknown"
"""The version where the source is run as it lies there."""


def version() -> str:
    """Return the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("noclobber")
    except PackageNotFoundError:
        return FROM_SOURCE
