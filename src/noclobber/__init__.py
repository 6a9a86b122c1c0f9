"""noclobber makes in-place operations safe in PyTorch training programs. This file is the public API, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noclobber.blocks import install, preserve, watch
from noclobber.model.error import ClobberError, ClobberWarning, UnsupportedTorch
from noclobber.ops import probe

__all__ = ["ClobberError", "ClobberWarning", "UnsupportedTorch", "install", "preserve", "probe", "watch"]

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext noclobber`."""
    from noclobber.integrations import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext noclobber`."""
    from noclobber.integrations import notebook

    notebook.unload(shell)
