"""Builds the native part with the user's compiler, against the torch and the Python that run."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from noclobber.observe.native.load import OFF, SOURCES, NotNative, library

NEWEST_PYTHON = (3, 14)
"""The newest Python whose frames `frames.c` knows."""
_COMPILERS = ("c++", "g++", "clang++")
_TRIED = (
    "import sys, noclobber; from noclobber.observe.native import bridge\n"
    "with noclobber.watch(): pass\n"
    "sys.exit(bridge.why_not() or 0)"
)


class NotBuilt(Exception):
    """Why the native part was not built."""


def build(say: Callable[[str], object]) -> Path:
    """Build the native part, try it in a new Python, and return its file. Tell `say` each step before it begins.

    Raises NotBuilt, and leaves what was there before.
    """
    _require()
    cxx = _compiler()
    from torch.utils.cpp_extension import include_paths, library_paths  # it takes a second to import

    try:
        file = library()
        file.parent.mkdir(parents=True, exist_ok=True)
    except (NotNative, OSError) as failure:
        raise NotBuilt(f"there is no place for it: {failure}") from None
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        includes = [f"-I{SOURCES}", f"-I{sysconfig.get_path('include')}", *_xxhash(cxx, scratch, say)]
        flags = ["-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"]
        say("compiling frames.c")
        c = [*cxx, "-x", "c", *flags, *includes]
        _run([*c, "-c", str(SOURCES / "frames.c"), "-o", "frames.o"], scratch)
        say("compiling hot_path.cpp against torch, which takes about a minute")
        torch = [word for path in include_paths() for word in ("-isystem", path)]
        cpp = [*cxx, "-std=c++20", *flags, "-Wno-unknown-pragmas", *includes, *torch]
        _run([*cpp, "-c", str(SOURCES / "hot_path.cpp"), "-o", "hot_path.o"], scratch)
        say("linking")
        needed = [f"-L{path}" for path in library_paths()] + ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
        _run([*cxx, "-shared", "hot_path.o", "frames.o", *needed, "-o", file.name], scratch)
        before = file.with_suffix(".before")
        if file.exists():
            os.replace(file, before)
        os.replace(Path(scratch, file.name), file)
        say("trying it in a new Python")
        try:
            _try()
        except NotBuilt:
            file.unlink()
            if before.exists():
                os.replace(before, file)
            raise
        before.unlink(missing_ok=True)
    return file


def _require() -> None:
    if sys.platform != "linux":
        raise NotBuilt(f"it can be built on Linux only so far, and this is {platform.system()}")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("it needs the usual CPython, with its global lock")
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        raise NotBuilt(f"it can be built for Python 3.11 to {newest}, and this is {platform.python_version()}")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotBuilt("the headers of Python are not installed (on Debian and Ubuntu: apt install python3-dev)")


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: that of CXX, or the first that there is."""
    asked = shlex.split(os.environ.get("CXX", ""))
    if asked and shutil.which(asked[0]) is None:
        raise NotBuilt(f"there is no compiler `{asked[0]}`, which CXX names")
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    if not asked and found is None:
        raise NotBuilt("there is no C++ compiler (on Debian and Ubuntu: apt install g++), and CXX names none")
    return asked or [str(found)]


def _xxhash(cxx: Sequence[str], scratch: str, say: Callable[[str], object]) -> list[str]:
    """Return the option by which the compiler finds xxhash.h: none if the system has it, else from PyPI's source."""
    asked = subprocess.run(
        [*cxx, "-E", "-x", "c++", "-"], input="#include <xxhash.h>", capture_output=True, text=True, cwd=scratch
    )
    if asked.returncode == 0 and "XXH3_64bits" in asked.stdout:
        return []
    source = f"xxhash=={version('xxhash')}"
    say(f"getting xxhash.h from the source of the package {source}")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "xxhash"]
    try:
        _run([*pip, "-d", scratch, source], scratch)
        archive = next(Path(scratch).glob("xxhash-*.tar.gz"))
        with tarfile.open(archive) as members:
            members.extractall(scratch, filter="data")
        header = next(Path(scratch).glob("xxhash-*/**/xxhash.h"))
    except (NotBuilt, OSError, StopIteration, tarfile.TarError) as failure:
        lines = str(failure).splitlines() or ["the source has no xxhash.h"]
        wanted = "the compiler does not find xxhash.h (on Debian and Ubuntu: apt install libxxhash-dev)"
        raise NotBuilt(f"{wanted}, and pip cannot get it: {lines[-1]}") from None
    return [f"-I{header.parent}"]


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as failure:
        raise NotBuilt(f"`{command[0]}` cannot be run: {failure.strerror}") from None
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise NotBuilt(f"`{command[0]}` has failed with status {done.returncode}:\n{last}")


def _try() -> None:
    env = {name: value for name, value in os.environ.items() if name != OFF}
    done = subprocess.run([sys.executable, "-c", _TRIED], env=env, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.splitlines() or [f"the new Python ended with status {done.returncode}"]
        raise NotBuilt(f"it was compiled, but does not work here: {said[-1]}")
