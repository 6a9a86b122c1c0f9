"""Other processes: a forked child notes its writes to shared memory in a file, for the parent that saved the memory."""

from __future__ import annotations

import marshal
import os
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from io import FileIO

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from noclobber.model.forks import at_fork
from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.overlap import Region, overlap
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.sites import Place, caller, place_of, site_of
from noclobber.observe.core.seen.written import Written
from noclobber.observe.core.writes import kernel_functions, optimizer_steps
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.layout import geometry, region

MOST_WORDS = 4096
"""Notes that one process may leave. The same line that writes the same bytes again adds none."""
MOST_NAMED = 3
"""Writes of other processes that are named for one save; the latest are kept."""
_LENGTH = struct.Struct("=I")

Where = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""The fields of a Region, in bytes."""
Word = tuple[int, str, Where | None, Place | None]
"""One note: the storage's key, the operator, the region written, and the place. `marshal` takes only plain values."""


class Processes:
    """A file without a name that a process shares with its forked children. It is gone when the last one closes it.

    Memory that was shared before the fork has the same address in the child, and so the same key.
    """

    def __init__(self) -> None:
        self._file: FileIO | None = None
        self._said: set[tuple[object, ...]] = set()

    def open(self) -> None:
        """Open the file. Called in the parent, before a fork."""
        if self._file is None:
            import fcntl

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # until `close`
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def tell(self, written: Written, tensor: torch.Tensor, place: Place | None) -> None:
        """Note a write of this process, if other processes may share the memory. Called in a child."""
        if self._file is None or len(self._said) >= MOST_WORDS or not is_shared(tensor):
            return
        key, shown = storages.storage_key(tensor), region(geometry(tensor))
        where = None if shown is None else (shown.offset, shown.shape, shown.strides, shown.itemsize)
        said = (key, written.op, where, place and place[:2])
        if key is not None and said not in self._said:
            self._said.add(said)
            word: Word = (key, written.op, where, place)
            text = marshal.dumps(word)
            self._file.write(_LENGTH.pack(len(text)) + text)

    def told(self, key: int | None, saved: Tensor) -> tuple[Write, ...]:
        """Return the writes to the bytes of a save that children noted, at most MOST_NAMED."""
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
        """Close the file in this process: it neither notes writes nor reads notes from now on."""
        if self._file is not None:
            self._file.close()
            self._file = None


def is_shared(tensor: torch.Tensor) -> bool:
    """Return True if other processes may map the tensor's memory."""
    try:
        return tensor.is_cpu and bool(storages.storage(tensor).is_shared())
    except (RuntimeError, NotImplementedError):
        return False


_armed: list[tuple[Context, Processes, Callable[[], None], Way]] = []
"""The entry that is armed in this process; empty if none is."""


def arm(context: Context, way: Way, processes: Processes, rest: Callable[[], None]) -> None:
    """Act when this process forks. `rest` ends what a child must not go on with."""
    _armed[:] = [(context, processes, rest, way)]
    way.at_end(_armed.clear)
    at_fork(before=_before_fork, after_in_child=_in_child)


def _before_fork() -> None:
    for _, processes, _, way in _armed:
        way.guarded(processes.open)


def _in_child() -> None:
    """Watch the child's writes to shared memory, which the parent may ask about. The child's own saves are copies."""
    for context, processes, rest, way in _armed:
        way.guarded(_watch_child, context, way, processes, rest)


def _watch_child(context: Context, way: Way, processes: Processes, rest: Callable[[], None]) -> None:
    rest()
    if kernel_functions.told() is not None:
        context.attend(way.entry(lambda written, tensor, _, frame: processes.tell(written, tensor, place_of(frame))))
        # The write log rests while PyTorch's own optimizers run.
        hook_stack.hook(register_optimizer_step_pre_hook, way.entry(partial(_before_step, processes)))


def _before_step(processes: Processes, optimizer: torch.optim.Optimizer, *_: object) -> None:
    written, place = optimizer_steps.written_by(type(optimizer).__name__), caller()
    for parameter in optimizer_steps.parameters(optimizer):
        processes.tell(written, parameter, place)
