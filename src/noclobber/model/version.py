"""The version of noclobber that is installed."""

from __future__ import annotations


def version() -> str:
    """Return the version; "0+unknown" where the source is run as it lies there."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("noclobber")
    except PackageNotFoundError:
        return "0+unknown"
