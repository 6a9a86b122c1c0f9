"""Finds the native part that was built for exactly this torch and this Python, and loads it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

from noclobber.model.caches import caches

NAME = "noclobber_hot_path"
SOURCES = Path(__file__).parent
OFF = "NOCLOBBER_PURE"
"""The environment variable that turns the native part off."""


class NotNative(Exception):
    """Why Python takes all saves and writes."""


def library() -> Path:
    """Return the file that is, or would be, the native part for this torch, this Python and these sources.

    Raises NotNative where there is no place for such files.
    """
    try:
        sources = hashlib.sha256()
        for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".h", ".c", ".cpp")):
            sources.update(path.read_bytes())
        home = caches()
    except (OSError, RuntimeError) as failure:
        raise NotNative(f"cannot be looked for: {failure}") from None
    version = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{sources.hexdigest()[:12]}"
    return home / "native" / version / f"{NAME}{importlib.machinery.EXTENSION_SUFFIXES[0]}"


def load() -> ModuleType:
    """Return the native part, which is not connected yet. Raises NotNative, which says why there is none."""
    if os.environ.get(OFF, "") not in ("", "0"):
        raise NotNative(f"turned off by {OFF}")
    path = library()
    try:
        if not path.exists():
            raise NotNative("not built for this torch and this Python (`noclobber doctor --build-native` builds it)")
        loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
        spec = importlib.util.spec_from_loader(NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module
    except (ImportError, OSError) as failure:
        raise NotNative(f"cannot be loaded: {failure}") from None
