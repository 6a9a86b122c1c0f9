"""The folders of runs, in the user's own state folder: a run that is killed leaves its folder, and the next command
says where it lies."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from noclobber.model.reports.report import Report, ReportError
from noclobber.processes.alive import is_known
from noclobber.processes.merging import files_in, first_of, report_of

DAYS = 30
"""How long the folder of a run is kept that does not run here."""
_TOLD = "told"
"""The file in a folder that a command has named."""
_ROOM = 4096
"""Bytes that a disk must have left, so that journals are kept there."""


def runs() -> str:
    """Return the folder that holds those of the runs; empty if the user has none."""
    if sys.platform == "win32":
        state = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        state = os.path.expanduser("~/Library/Application Support")
    else:
        state = os.environ.get("XDG_STATE_HOME", "")
        state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    return os.path.join(state, "noclobber", "runs") if os.path.isabs(state) else ""


def new_folder(of: str) -> str:
    """Return a new folder for a run, among those `of` the user; a temporary one if there is no room for it.

    Where there is none at all, it takes no files: then children are not reported.
    """
    with suppress(OSError):
        if of:
            os.makedirs(of, mode=0o700, exist_ok=True)
            return _roomy(tempfile.mkdtemp(prefix="run-", dir=of))
    try:
        return tempfile.mkdtemp(prefix="noclobber-")
    except OSError:
        return os.devnull


def _roomy(folder: str) -> str:
    """Return the folder. Raises OSError, and removes it, if it takes no files: a quota counts bytes, not folders."""
    try:
        path = os.path.join(folder, "room")
        with open(path, "wb") as file:
            file.write(bytes(_ROOM))
        os.unlink(path)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def killed(of: str) -> list[tuple[str, str]]:
    """Return the runs that were killed, as folder and command line. Each is returned once, whoever asks.

    Folders that nobody needs any more are removed.
    """
    found = []
    for folder in inside(of):
        with suppress(OSError, ReportError):
            first = first_of(folder)
            if first is None or first.state != "lost":
                if _is_old(folder) and (first is None or not is_known(first.host)):
                    shutil.rmtree(folder)
                continue
            report = report_of(folder)
            watched = any(one.watched for one in report.processes)
            if watched and _is_news(folder):
                found.append((folder, report.processes[0].typed()))
            elif not watched or _is_old(folder):
                forget(folder, report, of)
    return found


def forget(folder: str, report: Report, of: str) -> None:
    """Remove a folder whose report was read, if it is one of the user's runs and no process writes there any more."""
    ours = os.path.dirname(os.path.realpath(folder)) == os.path.realpath(of)
    if ours and all(one.state != "running" for one in report.processes):
        shutil.rmtree(folder, ignore_errors=True)


def inside(of: str) -> list[str]:
    """Return the folders of the runs of a user."""
    try:
        return sorted(one.path for one in os.scandir(of) if one.is_dir(follow_symlinks=False)) if of else []
    except OSError:
        return []


def _is_news(folder: str) -> bool:
    """Return True the first time, for whichever command asks first."""
    try:
        os.close(os.open(os.path.join(folder, _TOLD), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:  # or nothing can be noted: then it would be said again and again
        return False
    return True


def _is_old(folder: str) -> bool:
    newest = max(one.stat().st_mtime for one in (*map(Path, files_in(folder)), Path(folder)))
    return time.time() - newest > DAYS * 24 * 60 * 60
