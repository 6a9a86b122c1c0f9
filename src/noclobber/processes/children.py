"""What a process starts that begins as another program. A Python among them that noclobber is not in must be told of."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from noclobber.imports import after_import

Started = Callable[[int | None, list[str], bool], None]
"""Is told of a child: its pid where it is known, its command line, and whether it inherits the environment."""
RUN = "NOCLOBBER_RUN"
"""The variable that leads a new Python to the run."""
_PYTHON = re.compile(r"(?:^|[\s/\\;&|(\"'])(?:python|pypy)[\d.]*w?(?:\.exe)?(?=$|[\s;&|)\"'])", re.IGNORECASE)


def tell_of_children(started: Started) -> None:
    """Call `started` for each program that this process starts from now on. It must not raise.

    Python starts programs by few functions (`subprocess`, `multiprocessing` and `os.popen` by `fork_exec`). Each is
    wrapped for good: it is only called in processes that are watched to their end.
    """
    _wrap(os, "system", lambda pid, command: started(None, ["sh", "-c", _text(command)], True))
    _wrap(os, "posix_spawn", lambda pid, path, argv, env: started(pid, _words(argv), _leads(env)))
    _wrap(os, "posix_spawnp", lambda pid, path, argv, env: started(pid, _words(argv), _leads(env)))
    # Nothing returns from these: this process becomes the other program.
    _wrap(os, "execv", lambda pid, path, argv: started(os.getpid(), _words(argv), True), before=True)
    _wrap(os, "execve", lambda pid, path, argv, env: started(os.getpid(), _words(argv), _leads(env)), before=True)

    def forked(pid: Any, argv: Any, executables: Any, close: Any, keep: Any, folder: Any, env: Any) -> None:
        started(pid, _words(argv), _leads(env))

    def wrap_fork_exec() -> None:
        _wrap(sys.modules["_posixsubprocess"], "fork_exec", forked)
        if "subprocess" in sys.modules:
            _wrap(sys.modules["subprocess"], "_fork_exec", forked)

    if os.name == "posix":
        after_import("_posixsubprocess", wrap_fork_exec)


def _wrap(module: Any, name: str, tell: Callable[..., None], *, before: bool = False) -> None:
    """Wrap a function that starts a program. `tell` gets what it returned, the pid, and its first arguments."""
    native = getattr(module, name, None)
    if native is None:
        return
    taken = tell.__code__.co_argcount - 1

    @functools.wraps(native)
    def start(*args: Any, **options: Any) -> Any:
        given = [*args, *options.values()][:taken]
        pid = None if before else native(*args, **options)
        with suppress(Exception):  # of arguments that the function itself refuses
            tell(pid, *given)
        return native(*args, **options) if before else pid

    setattr(module, name, start)


def _leads(env: Any) -> bool:
    """Return True if an environment, a mapping or "NAME=value" in bytes, leads to the run; None is that of here."""
    if env is None:
        return True
    if hasattr(env, "keys"):
        return any(_text(name) == RUN for name in env)
    return any(_text(one).startswith(f"{RUN}=") for one in env)


def _words(argv: Sequence[Any]) -> list[str]:
    return [_text(word) for word in argv]


def _text(word: Any) -> str:
    return os.fsdecode(word)


def starts_python(command: Sequence[str]) -> bool:
    """Return True if a command line shows that Python is started, directly, by a shell, or by its `#!` line."""
    if any(_PYTHON.search(word) for word in command):
        return True
    from shutil import which

    with suppress(OSError, ValueError):
        with open(which(command[0]) or command[0], "rb") as file:
            first = file.readline(200)
        return first.startswith(b"#!") and b"python" in first
    return False
