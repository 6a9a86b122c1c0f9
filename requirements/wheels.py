"""Builds a release in dist/: its source, a wheel for every system, and one for Linux that brings the native part.

`python requirements/wheels.py [TORCH ...]`: for each of these releases of torch, or for all that pyproject.toml
supports and pip finds, and for each Python on the path that has its headers. torch's headers and libraries come out of
its own wheels, one at a time. What could not be had is said, and is built on demand where noclobber is used, as any
other pair is. The wheel is tagged with the C library of the machine that builds it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from release import ROOT, oldest

from noclobber.observe.native import build, load

ASKED = (
    "import sys, sysconfig as s; "
    "print(sys.implementation.cache_tag, s.get_config_var('EXT_SUFFIX'), s.get_path('include'))"
)


def main() -> None:
    """Compile each pair into the source tree, make the wheel, and take them out again."""
    built = load.brought("", "").parent
    shutil.rmtree(built, ignore_errors=True)
    hatchling("sdist", "wheel")
    try:
        pairs = [(release, *python) for release in sys.argv[1:] or releases() for python in pythons()]
        done = [pair for pair in pairs if brings(*pair)]
        if not done:
            sys.exit("no native part could be built, so there is no wheel for Linux")
        hatchling("wheel")
    finally:
        shutil.rmtree(built, ignore_errors=True)


def hatchling(*kinds: str) -> None:
    """Build into dist/."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", *(f"-t{kind}" for kind in kinds)], cwd=ROOT, check=True)


def releases() -> list[str]:
    """The releases of torch that pip finds for this Python and pyproject.toml supports."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    found = subprocess.run(pip, check=True, stdout=subprocess.PIPE, text=True).stdout
    (all_of_them,) = re.findall(r"Available versions: (.*)", found)
    first = number(oldest())
    return [one for one in all_of_them.split(", ") if re.fullmatch(r"[0-9.]+", one) and number(one) >= first]


def number(release: str) -> tuple[int, ...]:
    """A release as it is compared."""
    return tuple(map(int, release.split(".")))


def pythons() -> list[tuple[str, str, str, str]]:
    """Each Python that the native part can be built for: its command, tag of caches, ending of extensions, headers."""
    found = []
    for minor in range(11, build.NEWEST_PYTHON[1] + 1):
        name = f"python3.{minor}"
        asked = subprocess.run([name, "-c", ASKED], capture_output=True, text=True) if shutil.which(name) else None
        if asked is None or asked.returncode or not Path(asked.stdout.split()[2], "Python.h").exists():
            print(f"PASSED OVER: {name}, which is not here, or without its headers", file=sys.stderr)
            continue
        tag, ending, include = asked.stdout.split()
        found.append((name, tag, ending, include))
    return found


def brings(release: str, python: str, tag: str, ending: str, include: str) -> bool:
    """Compile for one pair, and say whether the wheel brings it."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        platform = ["--python-version", python.removeprefix("python"), "--platform", "manylinux_2_28_x86_64"]
        print(f"torch {release}, {python}", flush=True)
        try:
            subprocess.run([*pip, *platform, "-d", folder, f"torch=={release}"], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as members:
                needed = re.compile(r"torch/(include/|lib/lib(c10|torch|torch_cpu|torch_python)\.so)")
                members.extractall(folder, [name for name in members.namelist() if needed.match(name)])
            wheel.unlink()
            made = build.compiled(build.compiler(), include, Path(folder, "torch"), folder, lambda step: None)
        except (subprocess.CalledProcessError, ValueError, build.NotBuilt) as failure:
            print(f"PASSED OVER: torch {release} with {python}: {failure}", file=sys.stderr)
            return False
        home = load.brought(release, tag)
        home.mkdir(parents=True)
        subprocess.run(["strip", "--strip-unneeded", "-o", str(home / (load.NAME + ending)), str(made)], check=True)
        return True


if __name__ == "__main__":
    main()
