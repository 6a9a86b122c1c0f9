"""The releases of torch that noclobber supports. A newer release is tried too, and the report says so."""

from __future__ import annotations

import torch

OLDEST, NEWEST = "2.10", "2.15"
"""pyproject.toml names the oldest, the README both (tests/observe/torch_api/test_releases.py)."""


def notes() -> tuple[str, ...]:
    """Return the notes of a report on the installed release: one if the release is newer than NEWEST, else none."""
    release = torch.__version__.split(".")[:2]
    if [int(part) for part in release] <= [int(part) for part in NEWEST.split(".")]:
        return ()
    return (f"torch {'.'.join(release)} is newer than any release that noclobber was tested with ({NEWEST})",)
