"""Other processes: a forked child that writes to shared memory leaves word of it, for the parent that saved it."""

from __future__ import annotations

import marshal
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from noclobber.model.events import Tensor, Write
from noclobber.model.overlap import Region, overlap
from noclobber.observe.core import optimizer_steps, write_kernels
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.records import geometry
from noclobber.observe.core.sites import Place, place_of, site_of
from noclobber.observe.core.write_kernels import Written
from noclobber.observe.describe import clobbers
from noclobber.observe.torch_api import private

MOST_WORDS = 4096
"""Words that one process leaves; the same line that writes the same bytes again says nothing new."""
MOST_NAMED = 3
"""Writes of other processes named for one save, the latest ones."""
_LENGTH = struct.Struct("=I")

Word = tuple[int, str, tuple[Any, ...] | None, Place | None]
"""The key of a storage, the operator, the region written, and where: plain values, as `marshal` takes them."""


class Processes:
    """A nameless file that a process shares with the children it forks: gone when the last of them has closed it.

    Memory that was shared before the fork has the same address in the child, and so the same key.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._said: set[tuple[Any, ...]] = set()

    def open(self) -> None:
        """Called before a fork, in the parent."""
        if self._file is None:
            import fcntl

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # until `close`
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def tell(self, written: Written, tensor: torch.Tensor, place: Place | None) -> None:
        """Leave word of a write of this process, if others may share the memory. Called in a child."""
        if self._file is None or len(self._said) >= MOST_WORDS or not is_shared(tensor):
            return
        key, region = private.storage_key(tensor), clobbers.region(geometry(tensor))
        where = None if region is None else (region.offset, region.shape, region.strides, region.itemsize)
        said = (key, written.op, where, place and place[:2])
        if key is not None and said not in self._said:
            self._said.add(said)
            word: Word = (key, written.op, where, place)
            text = marshal.dumps(word)
            self._file.write(_LENGTH.pack(len(text)) + text)

    def told(self, key: int | None, saved: Tensor) -> tuple[Write, ...]:
        """What children said of writes to the bytes of a save."""
        found: list[Write] = []
        for storage, op, where, place in self._words():
            region = None if where is None else Region(*where)
            if storage == key and (region is None or saved.region is None or overlap(region, saved.region)):
                found.append(Write(op, site_of(place), len(found), via="process", tensor=saved))
        return tuple(found[-MOST_NAMED:])

    def _words(self) -> list[Word]:
        words: list[Word] = []
        if self._file is None:
            return words
        text, at = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0), 0
        while at + _LENGTH.size <= len(text):
            (length,) = _LENGTH.unpack_from(text, at)
            at += _LENGTH.size + length
            if at <= len(text):
                words.append(marshal.loads(text[at - length : at]))
        return words

    def close(self) -> None:
        """Nothing is to be said or heard any more in this process."""
        if self._file is not None:
            self._file.close()
            self._file = None


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes may map a tensor's memory."""
    try:
        return tensor.is_cpu and bool(private.storage(tensor).is_shared())
    except (RuntimeError, NotImplementedError):
        return False


_armed: list[tuple[Processes, Callable[[], None], Way]] = []
"""The one that is armed in this process, if any."""


def arm(processes: Processes, rest: Callable[[], None], way: Way) -> None:
    """Be there when this process forks; `rest` ends what a child is not to go on with."""
    _armed[:] = [(processes, rest, way)]
    way.at_end(_armed.clear)
    if hasattr(os, "register_at_fork"):
        _register()


@cache
def _register() -> None:
    """Once for the life of the process, as Python takes no such function back."""
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _before_fork() -> None:
    for processes, _, way in _armed:
        way.guarded(processes.open)


def _in_child() -> None:
    """The saves of a child are copies that nobody asks about; what it writes to shared memory, the parent may ask."""
    for processes, rest, way in _armed:
        way.guarded(partial(_watch_child, processes, rest, way))


def _watch_child(processes: Processes, rest: Callable[[], None], way: Way) -> None:
    sink = write_kernels.sink()
    rest()
    if sink is not None:
        write_kernels.connect(sink._replace(before=_telling(processes, way, sink.before)))
        private.hook(register_optimizer_step_pre_hook, way.entry(_telling_of_steps(processes)))


def _telling(processes: Processes, way: Way, before: Any) -> Any:
    def then_tell(written: Written, tensor: torch.Tensor) -> Any:
        after = before(written, tensor)
        way.guarded(lambda: processes.tell(written, tensor, place_of(sys._getframe(1))))
        return after

    return then_tell


def _telling_of_steps(processes: Processes) -> Any:
    """The write log rests while PyTorch's own optimizers run."""

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        place, written = place_of(sys._getframe(1)), Written(f"{type(optimizer).__name__}.step", (), False)
        for parameter in optimizer_steps.parameters(optimizer):
            processes.tell(written, parameter, place)

    return before_step
