"""Builds the native part with the user's compiler, against the torch and the Python that run."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from noclobber.observe.native.load import NAME, SOURCES, NotNative, library, trial

NEWEST_PYTHON = (3, 14)
"""The newest Python whose frames `frames.c` knows."""
_COMPILERS = ("c++", "g++", "clang++")


class NotBuilt(Exception):
    """Why the native part was not built."""


def build(say: Callable[[str], object]) -> Path:
    """Build the native part, try it in a new Python, and return its file. Tell `say` each step before it begins.

    Raises NotBuilt, and leaves what was there before.
    """
    require()
    cxx = compiler()
    try:
        file = library()
        file.parent.mkdir(parents=True, exist_ok=True)
    except (NotNative, OSError) as failure:
        raise NotBuilt(f"there is no place for it: {failure}") from None
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        made = compiled(cxx, sysconfig.get_path("include"), Path(torch.__file__).parent, scratch, say)
        before = file.with_suffix(".before")
        if file.exists():
            os.replace(file, before)
        os.replace(made, file)
        say("trying it in a new Python")
        if why := trial():
            file.unlink()
            if before.exists():
                os.replace(before, file)
            raise NotBuilt(f"it was compiled, but does not work here: {why}")
        before.unlink(missing_ok=True)
    return file


def compiled(cxx: Sequence[str], python: str, root: Path, scratch: str, say: Callable[[str], object]) -> Path:
    """Return the native part, made in `scratch`, for the Python with these headers and the torch in the folder `root`.

    Raises NotBuilt.
    """
    include = root / "include"
    vendored = [SOURCES / "vendored", include, include / "torch" / "csrc" / "api" / "include"]
    includes = [f"-I{SOURCES}", f"-I{python}", *(word for path in vendored for word in ("-isystem", str(path)))]
    flags = ["-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", *includes]
    say("compiling frames.c")
    _run([*cxx, "-x", "c", *flags, "-c", str(SOURCES / "frames.c"), "-o", "frames.o"], scratch)
    say("compiling the C++ against torch, which takes about a minute")
    # As one unit: torch's headers take most of the time, and each unit would read them again.
    units = sorted(SOURCES.glob("*.cpp"))
    Path(scratch, "native.cpp").write_text("".join(f'#include "{path.name}"\n' for path in units))
    _run([*cxx, "-std=c++20", *flags, "-c", "native.cpp", "-o", "native.o"], scratch)
    say("linking")
    needed = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    _run([*cxx, "-shared", "native.o", "frames.o", *needed, "-o", NAME], scratch)
    return Path(scratch, NAME)


def require() -> None:
    """Raise NotBuilt where the native part cannot be built, which says why."""
    if sys.platform != "linux":
        raise NotBuilt(f"it can be built on Linux only so far, and this is {platform.system()}")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("it needs the usual CPython, with its global lock")
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        raise NotBuilt(f"it can be built for Python 3.11 to {newest}, and this is {platform.python_version()}")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotBuilt("the headers of Python are not installed (on Debian and Ubuntu: apt install python3-dev)")


def compiler() -> list[str]:
    """Return the command of the C++ compiler: that of CXX, or the first that there is."""
    asked = shlex.split(os.environ.get("CXX", ""))
    if asked and shutil.which(asked[0]) is None:
        raise NotBuilt(f"there is no compiler `{asked[0]}`, which CXX names")
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    if not asked and found is None:
        raise NotBuilt("there is no C++ compiler (on Debian and Ubuntu: apt install g++), and CXX names none")
    return asked or [str(found)]


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as failure:
        raise NotBuilt(f"`{command[0]}` cannot be run: {failure.strerror}") from None
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise NotBuilt(f"`{command[0]}` has failed with status {done.returncode}:\n{last}")
