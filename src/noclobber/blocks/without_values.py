"""`noclobber.fake`: a block of a program in which tensors have no values."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from noclobber.model.fake import Enough, FakeOrder, gpu_of
from noclobber.model.reports.ledger import Peak
from noclobber.model.reports.report import Lost
from noclobber.render.text import place_of_line

if TYPE_CHECKING:
    from noclobber.observe.fake.run import FakeRun


class fake:
    """Run a block on tensors that have shapes, dtypes, devices and storages, but no values: a step of any size.

    `watch`, `probe` and the ledger work inside. Versions are compared, and no bytes. A model that was there before is
    computed with as if it were fake, and keeps its values, its gradients and its device.

    `steps` ends the block after so many optimizer steps; 0 for never. `device` is what is played: "cuda",
    "cuda:8xH100". With `world_size` the block is one rank of so many, and `init_process_group` connects to nobody.

    Raises ValueError for a device that noclobber does not know, and RuntimeError inside another such block.
    """

    def __init__(self, *, steps: int = 0, device: str = "cuda", world_size: int = 0, rank: int = 0) -> None:
        self._order = FakeOrder(steps, gpu_of(device, world_size), world_size, rank)
        self._run: FakeRun | None = None
        self._lost: list[Lost] = []

    def __enter__(self) -> Self:
        from noclobber.observe.fake.run import FakeRun

        run = FakeRun(self._order, self._lost.append)
        run.begin()
        self._run = run
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._run is not None:
            if error is not None:
                self._run.explain(error)
            self._run.end()
        return isinstance(error, Enough)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The peak of the memory of each device, with what it was made of."""
        return self._run.peaks() if self._run is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Where values were asked for, what else differs from a run with values, and what of noclobber failed."""
        failed = dict.fromkeys(f"{one.way} failed: {one.why}" for one in self._lost)
        return (*self._run.notes(place_of_line), *failed) if self._run is not None else ()
