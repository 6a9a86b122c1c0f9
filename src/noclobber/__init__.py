"""noclobber makes in-place operations safe in PyTorch training programs. This file is the public API, nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["ClobberError", "ClobberWarning", "UnsupportedTorch", "fake", "install", "preserve", "probe", "watch"]
__version__: str

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from noclobber.blocks.installing import install
    from noclobber.blocks.preserving import preserve
    from noclobber.blocks.watching import watch
    from noclobber.blocks.without_values import fake
    from noclobber.model.reports.error import ClobberError, ClobberWarning, UnsupportedTorch
    from noclobber.ops import probe

_WHERE = {
    "noclobber.blocks.installing": ("install",),
    "noclobber.blocks.preserving": ("preserve",),
    "noclobber.blocks.watching": ("watch",),
    "noclobber.model.reports.error": ("ClobberError", "ClobberWarning", "UnsupportedTorch"),
    "noclobber.ops": ("probe",),
    "noclobber.blocks.without_values": ("fake",),
}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` when it is first read: the command line must be able to catch a Ctrl-C before that."""
    if name == "__version__":
        from noclobber.model.version import version

        globals()[name] = known = version()
        return known
    for module, names in _WHERE.items():
        if name in names:
            globals()[name] = value = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext noclobber`."""
    from noclobber.integrations import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext noclobber`."""
    from noclobber.integrations import notebook

    notebook.unload(shell)
