"""Where noclobber keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def caches() -> Path:
    """Return the folder, which need not be there. Raises RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noclobber"
