"""Finds the native part that was built for exactly this torch and this Python, and loads it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch

from noclobber.model.caches import caches

NAME = "noclobber_hot_path"
SOURCES = Path(__file__).parent
OFF = "NOCLOBBER_PURE"
"""The environment variable that turns the native part off."""


_TRIAL = (
    "import sys, noclobber; from noclobber.observe.native import bridge, load; load.in_trial = True\n"
    "with noclobber.watch(): pass\n"
    "sys.exit(bridge.why_not() or 0)"
)
in_trial = False
"""Whether this Python is the one that tries the native part."""


class NotNative(Exception):
    """Why Python takes all saves and writes."""


def library() -> Path:
    """Return the file that is, or would be, the native part for this torch, this Python and these sources.

    Raises NotNative where there is no place for such files.
    """
    try:
        sources = hashlib.sha256()
        for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".c", ".cpp")):
            sources.update(path.read_bytes())
        home = caches()
    except (OSError, RuntimeError) as failure:
        raise NotNative(f"cannot be looked for: {failure}") from None
    version = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{sources.hexdigest()[:12]}"
    return home / "native" / version / f"{NAME}{importlib.machinery.EXTENSION_SUFFIXES[0]}"


def brought(release: str, python: str) -> Path:
    """Return the folder in which a wheel brings the native part for a torch (`2.13.0`) and a Python (`cpython-311`)."""
    return SOURCES / "built" / f"torch-{release}-{python}"


def load() -> ModuleType:
    """Return the native part, which is not connected yet. Raises NotNative, which says why there is none.

    What was built here goes before what the wheel brings for this release of torch and this Python.
    """
    if os.environ.get(OFF, "") not in ("", "0"):
        raise NotNative(f"turned off by {OFF}")
    path = library()
    if not path.exists():
        ours = brought(torch.__version__.partition("+")[0], str(sys.implementation.cache_tag)) / path.name
        if not ours.exists():
            raise NotNative("not built for this torch and this Python (`noclobber doctor --build-native` builds it)")
        if not in_trial and (why := _said_of(ours, path.with_name("trial"))):
            raise NotNative(f"what the wheel brings does not work here: {why}")
        path = ours
    try:
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_loader(NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module
    except (ImportError, OSError) as failure:
        raise NotNative(f"cannot be loaded: {failure}") from None


def trial() -> str:
    """Try the native part in a new Python, which may crash; return why it does not work, or nothing."""
    env = {name: value for name, value in os.environ.items() if name != OFF}
    done = subprocess.run([sys.executable, "-c", _TRIAL], env=env, capture_output=True, text=True)
    said = done.stderr.splitlines() or [f"the new Python ended with status {done.returncode}"]
    return said[-1] if done.returncode else ""


def _said_of(file: Path, told: Path) -> str:
    """Return why a file that was built elsewhere does not work here; its first use tries it, and keeps the answer."""
    stamp = f"{file.stat().st_mtime_ns} {file.stat().st_size}\n"
    with suppress(OSError):
        if (kept := told.read_text()).startswith(stamp):
            return kept.removeprefix(stamp)
    why = trial()
    with suppress(OSError):
        told.parent.mkdir(parents=True, exist_ok=True)
        told.write_text(stamp + why)
    return why
