"""Removes what noclobber keeps outside of its package: its cache, and the files of runs that are over."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from noclobber.model.caches import caches
from noclobber.model.reports.report import ReportError
from noclobber.processes.leftover import inside, runs
from noclobber.processes.merging import first_of

STILL = 60 * 60
"""Seconds for which a folder that says nothing of its process counts as in use after it was changed."""


def clean() -> tuple[list[str], list[str]]:
    """Remove these folders. Return those that are gone, and those that stay: a run uses them, or they are not ours."""
    removed, left = list[str](), list[str]()
    of_runs = runs()
    # A folder of the user's own may have such a name too.
    temporary = [str(one) for one in Path(tempfile.gettempdir()).glob("noclobber-*") if _is_of_run(str(one))]
    for folder in [*temporary, *inside(of_runs)]:
        if _is_in_use(folder):
            left.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            (left if os.path.exists(folder) else removed).append(folder)
    with suppress(OSError):  # not empty, as a run goes on there
        os.rmdir(of_runs)
        os.rmdir(os.path.dirname(of_runs))
    with suppress(RuntimeError):
        cache = str(caches())
        if os.path.isdir(cache):
            shutil.rmtree(cache, ignore_errors=True)
            (left if os.path.exists(cache) else removed).append(cache)
    return removed, left


def _is_of_run(folder: str) -> bool:
    """Return True if a process of a run has written into a folder."""
    with suppress(OSError, ReportError):
        return first_of(folder) is not None
    return False


def _is_in_use(folder: str) -> bool:
    """Return True if the process that made a folder runs, or may run."""
    try:
        first = first_of(folder)
        if first is not None:
            return first.state == "running"
        return time.time() - os.stat(folder).st_mtime < STILL
    except (OSError, ReportError):
        return True
