"""Programs that a process starts. The report names each new Python that was not watched."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from shutil import which
from typing import Any

from noclobber.observe.torch_api.patches import Patches
from noclobber.session.imports import after_import

Started = Callable[[int | None, list[str]], None]
"""Called for each child, with its pid if that is known, and its command line."""
RUN = "NOCLOBBER_RUN"
"""The variable that leads a new Python to the run. It is given to children, and not in `os.environ`."""
_PYTHON = re.compile(r"(?:^|[\s/\\;&|(\"'])(?:python|pypy)[\d.]*w?(?:\.exe)?(?=$|[\s;&|)\"'])", re.IGNORECASE)


def notice_children(started: Started, patches: Patches, order: Callable[[], str] | None = None) -> None:
    """Call `started` for each program that this process starts from now on. With `order`, lead them to that run.

    Python starts programs by few functions (`subprocess`, `multiprocessing` and `os.popen` by `fork_exec`). A program
    that gets the environment of this process finds the run there (`os.putenv`), another one gets the variable too.
    """

    def wrap(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        native = getattr(module, name, None)
        if native is not None:
            patches.put(module, name, functools.wraps(native)(make(native)))

    def tell(pid: int | None, command: Sequence[Any]) -> None:
        with suppress(Exception):  # words that the function itself has refused, or will
            started(pid, [os.fsdecode(word) for word in command])

    def led(environ: Any) -> Any:
        with suppress(Exception):
            return environ if order is None or RUN in environ else {**environ, RUN: order()}
        return environ

    def system(native: Callable[..., Any]) -> Callable[..., Any]:
        def start(command: Any) -> Any:
            tell(None, ["sh", "-c", command])
            return native(command)

        return start

    def posix_spawn(native: Callable[..., Any]) -> Callable[..., Any]:
        def start(path: Any, argv: Any, env: Any, *rest: Any, **options: Any) -> Any:
            pid = native(path, argv, led(env), *rest, **options)
            tell(pid, argv)
            return pid

        return start

    def execute(native: Callable[..., Any]) -> Callable[..., Any]:
        def start(path: Any, argv: Any, *env: Any) -> Any:
            tell(os.getpid(), argv)
            return native(path, argv, *map(led, env))

        return start

    def fork_exec(native: Callable[..., Any]) -> Callable[..., Any]:
        def start(args: Any, executables: Any, close: Any, keep: Any, folder: Any, env: Any, *rest: Any) -> Any:
            if (
                order is not None
                and isinstance(env, list)
                and not any(one.startswith(f"{RUN}=".encode()) for one in env)
            ):
                env = [*env, f"{RUN}={order()}".encode()]
            pid = native(args, executables, close, keep, folder, env, *rest)
            tell(pid, args)
            return pid

        return start

    def wrap_fork_exec() -> None:
        wrap(sys.modules["_posixsubprocess"], "fork_exec", fork_exec)
        if "subprocess" in sys.modules:
            wrap(sys.modules["subprocess"], "_fork_exec", fork_exec)

    makers = {
        "system": system, "posix_spawn": posix_spawn, "posix_spawnp": posix_spawn, "execv": execute, "execve": execute
    }  # fmt: skip
    for name, make in makers.items():
        wrap(os, name, make)
    if os.name == "posix":
        after_import("_posixsubprocess", wrap_fork_exec)


_SERVANTS = re.compile(r"\bmultiprocessing\.resource_tracker\b|\btorch[./\\]_inductor\b")


def starts_program_in_python(command: Sequence[str]) -> bool:
    """Return True if a command line starts Python for the program, and not as a servant of Python or of PyTorch."""
    return starts_python(command) and not any(_SERVANTS.search(word) for word in command)


def starts_python(command: Sequence[str]) -> bool:
    """Return True if a command line shows that Python is started, directly, by a shell, or by its `#!` line."""
    words = [word for argument in command for word in argument.split()]
    # Options and folders name Python too: a compiler gets `-I/usr/include/python3.11`.
    if any(_PYTHON.search(word) and not word.startswith("-") and not os.path.isdir(word) for word in words):
        return True
    with suppress(OSError, ValueError):
        with open(which(command[0]) or command[0], "rb") as file:
            first = file.readline(200)
        return first.startswith(b"#!") and b"python" in first
    return False
