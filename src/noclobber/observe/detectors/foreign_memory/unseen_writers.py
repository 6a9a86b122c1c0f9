"""Code that writes the memory of a device without asking torch for its address: extensions built against torch, CUDA
graphs, other processes.

Whatever else writes there asks first (`exports`: Triton, CuPy, Numba and ctypes take `data_ptr`, DLPack or
`__cuda_array_interface__`), or is an operator.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path

import torch

from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.handles import compare
from noclobber.observe.torch_api import private

_LIBRARIES = (b"libtorch", b"libc10", b"c10.dll")
"""The libraries of torch, of which the file of an extension names one if it gets tensors: on Linux and on Windows."""
_MAPS = Path("/proc/self/maps")
_OURS = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[3]) + os.sep)


class UnseenWriters:
    """Whether such code is there. Once it is, it stays: nothing tells when it has written for the last time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loaded = -1, -1
        self._are_there = False

    def may_write(self) -> bool:
        """Return True if such code is there. New extensions are looked for when modules were imported or built."""
        if not self._are_there:
            loaded = len(sys.modules), _built()
            if loaded != self._loaded:
                self._loaded, self._are_there = loaded, any(map(is_built_against_torch, _extensions()))
        return self._are_there

    def begin_to_write(self) -> None:
        """Take the fingerprints that saves have gone without: such code is about to write for the first time."""
        if not self._are_there:
            self._are_there = True
            compare(self._context.contents, [one for one in self._context.live.all() if not one.alias.is_cpu])


def arm(context: Context, way: Way) -> None:
    """Watch for such code, until the recorder disarms."""
    assert context.contents is not None
    writers = UnseenWriters(context)
    for owner, name in ((torch.cuda.CUDAGraph, "replay"), (torch.UntypedStorage, "_share_cuda_")):
        way.before(owner, name, lambda *_, **__: writers.begin_to_write())
    context.contents.writes_unseen = writers.may_write


def _built() -> int:
    """Return how many extensions torch has built in this process. They need not be among `sys.modules`."""
    if "torch.utils.cpp_extension" not in sys.modules:
        return 0
    return len(private.lookup("utils.cpp_extension.JIT_EXTENSION_VERSIONER").entries)


def _extensions() -> Iterator[str]:
    """Yield the files of the extension modules in this process that are neither torch's nor noclobber's. The operators
    of a library that `torch.ops.load_library` has loaded are compared one by one (kernel_functions.py)."""
    if _MAPS.exists():  # a module that torch.utils.cpp_extension builds is not in sys.modules
        lines = (line.split(maxsplit=5) for line in _MAPS.read_text(errors="surrogateescape").splitlines())
        files = {parts[5] for parts in lines if len(parts) > 5 and "x" in parts[1]}
    else:
        specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
        files = {str(spec.origin) for spec in specs if spec and isinstance(spec.loader, ExtensionFileLoader)}
    for file in files - set(torch.ops.loaded_libraries):
        name = os.path.basename(file)
        if name.endswith(tuple(EXTENSION_SUFFIXES)) and not name.startswith("lib") and not file.startswith(_OURS):
            yield file


@functools.cache
def is_built_against_torch(file: str) -> bool:
    """Return True if the file of an extension names a library of torch; also if it cannot be read."""
    try:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _LIBRARIES)
    except (OSError, ValueError):
        return True
