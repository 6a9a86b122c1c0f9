"""Whether a process still runs. Another one may have its number by now, and of another machine nobody here knows."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

from noclobber.model.reports.process import State


def birth(pid: int) -> str:
    """Return what tells a process from others that have its number; empty where the system is not Linux."""
    with suppress(OSError, IndexError):
        return f"{_numbering()} {stat(pid)[19].decode()}"
    return ""


def is_known(host: str) -> bool:
    """Return True if it can be known of processes of this machine whether they run."""
    return host == platform.node() and os.name == "posix"  # on Windows `os.kill` ends a process, with whatever signal


def state_of(pid: int, host: str, born: str = "") -> State:
    """Return whether a process that has not told its end still runs; "running" too where that cannot be known.

    `born` is its birth, empty if it is not known.
    """
    if not is_known(host):
        return "running"
    if born and not born.startswith(f"{_numbering()} "):
        return "running"  # in a container, which numbers its processes itself
    with suppress(AttributeError, ChildProcessError):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return "lost"  # a child of this process that nobody has waited for
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except OSError:
        return "lost"
    with suppress(OSError, IndexError):
        if stat(pid)[0] in (b"Z", b"X"):
            return "lost"  # its parent has not waited for it
    now = birth(pid)
    return "lost" if born and now and now != born else "running"


def stat(pid: int) -> list[bytes]:
    """Return what Linux says of a process, from its state on (proc_pidstat(5)). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _numbering() -> str:
    """Return the namespace of the process ids that this process sees. Raises OSError where there is none."""
    return os.readlink("/proc/self/ns/pid")
