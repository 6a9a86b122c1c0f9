"""The releases of torch that noclobber supports. A newer one is tried all the same, and the report says that it is."""

from __future__ import annotations

import torch

OLDEST, NEWEST = "2.10", "2.15"
"""What pyproject.toml and the README say too (tests/observe/torch_api/test_releases.py)."""


def notes() -> tuple[str, ...]:
    """What a report is to say of the installed release."""
    release = torch.__version__.split(".")[:2]
    if [int(part) for part in release] <= [int(part) for part in NEWEST.split(".")]:
        return ()
    return (f"torch {'.'.join(release)} is newer than any release that noclobber was tested with ({NEWEST})",)
