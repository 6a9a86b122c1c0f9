"""Begins and ends a fake run: what is put in place, in which order, and what the report says of it."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from noclobber.model.fake import STEPS, FakeOrder
from noclobber.model.reports.ledger import Peak
from noclobber.model.reports.report import Lost
from noclobber.model.units import counted, few
from noclobber.observe.core.boundary import Way, is_own
from noclobber.observe.fake import memory, outside, ranks, values
from noclobber.observe.fake.checkpoints import Checkpoints
from noclobber.observe.fake.gpu import classes, cuda, cudnn, devices, kernels
from noclobber.observe.fake.memory import Memory
from noclobber.observe.fake.mode import Mode
from noclobber.observe.fake.outside import Batches
from noclobber.observe.fake.steps import Steps
from noclobber.observe.fake.values import Asked
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.observe.torch_api.patches import Patches
from noclobber.observe.torch_api.tensors import fake_tensors

_OF_FAKES = f"torch{os.sep}_subclasses{os.sep}"
MOST_NAMED = 5
"""Places that the report names one by one."""


class FakeRun:
    """The state of one fake run. `begin` and `end` belong to one thread."""

    def __init__(self, order: FakeOrder, failed: Callable[[Lost], None]) -> None:
        fake_tensors.self_test()
        self._order = order
        self._asked = Asked()
        self.memory = Memory()
        self.devices = devices.Devices(order.gpu)
        self._way = Way("the run without values", failed, lasting=True)
        self.steps = Steps(order.steps, self.memory, self._way)
        self._mode = Mode(order.gpu, self.devices, self.memory, self._asked, self._way, is_program=order.is_program)
        self._playing = devices.Playing(self.devices, self._mode.explain)
        self._checkpoints = Checkpoints(self.devices)
        self._batches = Batches(order.batch, order.giver, self.devices) if order.batch is not None else None
        self._ranks = ranks.Ranks(order.world_size, order.rank, self.devices)
        self._patches = Patches()
        self._at_end = contextlib.ExitStack()
        self._thread = 0
        self.elsewhere = 0
        """Backward calls of other threads, whose tensors have values: modes are a thread's own."""

    def begin(self) -> None:
        """Make all that comes fake, in this thread. Raises RuntimeError inside another fake run."""
        if _active:
            raise RuntimeError("a fake run is under way: leave it before another one begins")
        _active.append(self)
        self._thread = get_ident()
        try:
            self._put_in_place()
        except BaseException:
            self.end()
            raise

    def _put_in_place(self) -> None:
        patches, gpu = self._patches, self._order.gpu
        self._mode.patch(patches)
        self.memory.patch(patches)
        values.patch(patches)
        devices.patch(patches, self.devices, self._asked)
        if gpu.count:
            cuda.patch(patches, gpu, self.devices, self.memory)
            classes.patch(patches, self.devices)
            self._at_end.callback(kernels.patch(patches, gpu.kind))
            cudnn.patch(patches, gpu.kind)
        patches.put(torch.autograd, "_engine_run_backward", self._played(engine_state.engine()))
        self._at_end.callback(self.steps.patch(patches))
        outside.patch(patches)
        self._checkpoints.patch(patches)
        self._at_end.callback(self._checkpoints.end)
        if self._batches is not None:
            self._batches.patch(patches)
        self._at_end.callback(memory.patch_modules(patches, self.memory, self._way, keeps=not self._order.is_program))
        self._at_end.enter_context(torch.compiler.set_stance("force_eager"))
        self._at_end.callback(self._ranks.end)
        self._ranks.begin()
        self._at_end.enter_context(self._mode)
        self._at_end.enter_context(self._playing)

    def end(self) -> None:
        self._at_end.close()
        self._patches.undo()
        self._mode.put_back()
        _active.remove(self)

    def _played(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Return a backward call that plays the device in hooks and regions that run again: PyTorch takes the mode away
        while a function runs that the mode was asked for, and `Tensor.backward` is one."""

        def _engine_run_backward(*args: Any, **options: Any) -> Any:
            with self._playing if get_ident() == self._thread else contextlib.nullcontext():
                return native(*args, **options)

        return _engine_run_backward

    def given(self, iterates: bool) -> object:
        """Return a batch of the shapes that are asked for, or an iterator over some."""
        if self._batches is None:
            return None
        return self._batches.some(STEPS) if iterates else self._batches.one()

    def checked(self) -> None:
        """Count a backward call that this thread has run."""
        self.elsewhere += get_ident() != self._thread

    def explain(self, error: BaseException) -> None:
        """Say in a note of an error that ends the program if it comes from noclobber or from the lack of values."""
        if isinstance(error, Exception) and is_own(error):
            self._way.fail(error)
            error.add_note("noclobber: this error comes from noclobber itself, not from the program")
        elif isinstance(error, Exception) and not getattr(error, "__notes__", None):
            frames = traceback.walk_tb(error.__traceback__)
            if "FakeTensor" in str(error) or any(_OF_FAKES in frame.f_code.co_filename for frame, _ in frames):
                error.add_note(
                    "noclobber: this error may come from the run without values (`--fake`): run this part without it, "
                    "at a small size, to know"
                )

    def peaks(self) -> tuple[Peak, ...]:
        """Return the peak of each device, those that are played first."""
        found = sorted(self.memory.peaks().items(), key=lambda one: (not devices.is_played(one[0]), str(one[0])))
        room = self._order.gpu.bytes
        return tuple(
            Peak(str(self.devices.shown(device)), room if devices.is_played(device) else 0, *kinds.values())
            for device, kinds in found
        )

    def notes(self, place_of: Callable[[str, int], str]) -> tuple[str, ...]:
        """Return what a reader of the report must know, in words. `place_of` words a path and a line."""
        said = [f"the program was stopped after {self.steps.in_words()} (`--steps`)"] * self.steps.stopped
        if places := self._asked.sites():
            lines = [(site.span() if site is not None else None, what) for site, what in places]
            shown = [
                f"{place_of(at.path, at.line) if at is not None else 'a line that is not known'} (`{what}`)"
                for at, what in lines
            ]
            asked = f"values were asked for at {counted(len(places), 'place')}"
            said.append(f"{asked}; what depends on them was not checked: {', '.join(few(shown, MOST_NAMED))}")
        said += self._batches.notes() if self._batches is not None else []
        said += self._ranks.notes()
        said += self._mode.stopped
        said += self._mode.cudnn.notes()
        if self.elsewhere:
            ran = f"{counted(self.elsewhere, 'backward call')} of other threads ran with values"
            said.append(f"{ran}: `--fake` is for the thread that begins the program")
        if names := sorted(self._checkpoints.names):
            said.append(f"nothing was written to {', '.join(few(names, MOST_NAMED))}: there are no values")
        return tuple(said)


_active: list[FakeRun] = []


def active() -> FakeRun | None:
    return _active[-1] if _active else None
