"""noclobber makes in-place operations safe in PyTorch training programs. This file is the public API, nothing else."""

from __future__ import annotations

from noclobber.blocks import install, preserve, watch
from noclobber.model.error import ClobberError, ClobberWarning, UnsupportedTorch
from noclobber.ops import probe

__all__ = ["ClobberError", "ClobberWarning", "UnsupportedTorch", "install", "preserve", "probe", "watch"]
