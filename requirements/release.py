"""Runs Python with another release of torch than the lock's: `python requirements/release.py 2.15.0 -m pytest`.

In the place of a version stand `oldest` and `newest`, of those that pyproject.toml supports; without a command the
version is printed. All that the lock holds but torch goes into an environment of its own, and then that release (on
Linux a CUDA build of several GB, which needs no GPU). It is kept for the next time, and for other checkouts, in
`~/.cache/noclobber`, or `noclobber` under XDG_CACHE_HOME. Over it lies a thin one in the checkout, with this noclobber.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def main() -> None:
    """Make what is not there yet, then become the command."""
    version, *command = sys.argv[1:] or sys.exit(__doc__)
    version = {"oldest": oldest, "newest": newest}.get(version, lambda: version)()
    shared, thin = cache() / f"torch-{version}-py{PYTHON}", ROOT / f".venv-torch-{version}-py{PYTHON}"
    shared.parent.mkdir(parents=True, exist_ok=True)
    using = open(f"{shared}.lock", "w")  # noqa: SIM115 - held for as long as the command runs
    lock(using, fcntl.LOCK_SH, f"waiting for {shared} to be made")
    while not (is_ready(shared, shared_stamp()) and is_ready(thin, thin_stamp(shared))):
        lock(using, fcntl.LOCK_EX, f"waiting for what uses {shared}")
        make_shared(shared, version)
        make_thin(thin, shared)
        lock(using, fcntl.LOCK_SH, f"waiting for {shared} to be made")  # another checkout may have come in between
    if not command:
        print(version)
        return
    os.set_inheritable(using.fileno(), True)
    python = str(thin / "bin" / "python")
    os.execv(python, [python, *command])


def cache() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "noclobber")


def oldest() -> str:
    """The first release that pyproject.toml supports."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (first,) = (found[1] for one in wanted if (found := re.fullmatch(r"torch>=([0-9.]+)", one)))
    return first if first.count(".") > 1 else f"{first}.0"


def newest() -> str:
    """The last release that pip finds for this Python."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    found = subprocess.run(pip, check=True, stdout=subprocess.PIPE, text=True).stdout
    (first, *_) = re.findall(r"\(([0-9.]+)", found)
    return str(first)


def shared_stamp() -> str:
    """What tells whether an environment is still the one wanted."""
    lock = (ROOT / "requirements" / "dev.lock").read_bytes()
    return f"{hashlib.sha256(lock).hexdigest()} {sys.version} {sys.base_prefix}"


def thin_stamp(shared: Path) -> str:
    """The same for what lies over it; the package itself is there by its path."""
    project = (ROOT / "pyproject.toml").read_bytes()
    return f"{shared_stamp()} {hashlib.sha256(project).hexdigest()} {shared}"


def is_ready(folder: Path, stamp: str) -> bool:
    """Whether an environment was made to its end, for this stamp."""
    file = folder / "stamp"
    return file.exists() and file.read_text() == stamp


def begin(folder: Path) -> Path:
    """A new environment, without a stamp; returns its Python."""
    folder.joinpath("stamp").unlink(missing_ok=True)
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    return folder / "bin" / "python"


def finish(folder: Path, stamp: str) -> None:
    """Everything is in it."""
    unfinished = folder / "stamp.unfinished"
    unfinished.write_text(stamp)
    unfinished.replace(folder / "stamp")


def make_shared(folder: Path, version: str) -> None:
    """The lock first, and then torch, which replaces what it can't do with: torch 2.12 wants an older setuptools."""
    if is_ready(folder, shared_stamp()):
        return
    print(f"making {folder}: several minutes", file=sys.stderr, flush=True)
    python = begin(folder)
    subprocess.run([python, "-m", "ensurepip", "--default-pip"], check=True, stdout=subprocess.DEVNULL)
    lines = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    others = folder / "others.lock"
    others.write_text("\n".join(line for line in lines if not line.startswith("torch==")))
    install(python, "-r", str(others))
    install(python, "--no-cache-dir", f"torch=={version}")
    finish(folder, shared_stamp())


def make_thin(folder: Path, shared: Path) -> None:
    """Finds everything in the shared one, and this checkout's package besides."""
    if is_ready(folder, thin_stamp(shared)):
        return
    python = begin(folder)
    packages = Path("lib", f"python{PYTHON}", "site-packages")
    folder.joinpath(packages, "shared.pth").write_text(f"import site; site.addsitedir({str(shared / packages)!r})\n")
    install(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    finish(folder, thin_stamp(shared))


def install(python: Path, *what: str) -> None:
    """By pip, to stderr: what this prints is the version."""
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *what]
    subprocess.run(pip, check=True, stdout=sys.stderr)


def lock(file: Any, how: int, waiting: str) -> None:
    """Take a lock, and say so where it has to be waited for."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        print(waiting, file=sys.stderr, flush=True)
        fcntl.flock(file, how)


if __name__ == "__main__":
    main()
