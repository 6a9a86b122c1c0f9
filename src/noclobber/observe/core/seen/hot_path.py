"""What core/ asks of the native part (native/bridge.py), which takes the usual saves and writes in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from types import SimpleNamespace
from typing import Any

import torch

from noclobber.model.seen.events import Step
from noclobber.observe.core.seen.records import Backward, Record
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.core.seen.written import Written
from noclobber.observe.torch_api.autograd.hook_stack import Pair
from noclobber.observe.torch_api.dispatch import compile_guard
from noclobber.observe.witness.witness import Witness

OfRegion = Callable[[Any, torch.Tensor], Any]
"""What is called with PyTorch's holder and a tensor."""

Looks = tuple[Sized, Mapping[int, object]]
"""What is called before every write, and what before the writes to a storage, by its key (`Context.attend`)."""


class HotPath:
    """The native part. What it takes belongs to the thread that calls, if nothing else is said.

    `asked` is what it asks of Python, by name. It keeps what it has asked for, but for what is called instead of it
    (`around_steps`, `around_backward`).
    """

    def __init__(self, native: Any, asked: SimpleNamespace) -> None:
        self._native, self._asked = native, asked

        # -- saves; the first three as a LiveSaves asks for them (`Beside`)

        self.hand_over: Callable[[int | None], None] = native.hand_over
        self.meet: Callable[[int, torch.Tensor, int, int], bool] = native.meet
        self.alive: Callable[[], int] = native.alive
        self.place_of: Callable[[int], Place | None] = native.place_of_node
        """Return where a node last saved; None if that is not known."""
        self.place_here: Callable[[], Place | None] = native.place_here
        """Return the place of the program's line that runs, as `sites.place_of` does."""
        self.region_functions: Callable[..., tuple[OfRegion, OfRegion]] = native.region_functions
        """Return what notes a save of a checkpointed region, and what says whether a recomputed tensor is as saved:
        from the list of its saves, the class of these, whether they get fingerprints, and the same two in Python."""

        self.outside: Callable[..., dict[int, Witness] | None] = native.outside
        """Return a witness for the storage of each tensor in some lists, by its key; None if only Python can tell. The
        class of the witnesses comes first."""

        self.given: Callable[[tuple[object, ...]], tuple[Any, ...] | None] = native.given
        """Return what a custom Function is given as `_given` of undeclared_writes.py does, with fingerprints; None if
        only Python can tell."""

        # -- writes, and the graph

        self.views: Callable[[], list[tuple[int, str, Place | None]]] = native.take_views
        """Return the operators that returned several views since the last call, as `Memory.views` holds them."""
        self.backward_begins: Callable[[], Place | None] = native.backward_begins
        """Hear that this thread is about to call the engine: a step that raised is over. Return the place."""
        self.gradients_behind: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = native.gradients_behind
        """Return the gradients that leaves have already and that a backward from these tensors may add to."""

        self.eval_frame_function: compile_guard.Quick = native.eval_frame_function

        # -- what it must know

        self.end: Callable[[], None] = native.end
        """Leave everything to Python."""
        self.leave: Callable[[], None] = native.leave
        """Leave this thread to Python."""
        self.set_step: Callable[[Step | None, frozenset[int | None] | None], None] = native.set_step
        """Hear to which step of an optimizer the writes of this thread belong from now on: those to the storages in the
        set, and all where that is None."""
        self.set_sharing: Callable[[bool], None] = native.share
        """Hear whether a backward is under way in which bytes that are read twice need to be hashed once only."""
        self.set_careful: Callable[[bool], None] = native.set_careful
        """Hear whether writes to tensors in the graph must be checked too."""
        self.set_keeping: Callable[[bool], None] = native.set_keeping
        """Hear whether bytes are preserved."""
        self.forget: Callable[[bool], None] = native.forget
        """Drop the records; if True also what is known of lines, which nobody may be using then."""

    def records(self) -> list[Record]:
        """Return the writes that were taken since the last call, oldest first, in all threads."""
        return list(map(Record._make, self._native.take_records()))

    def writes_since(self, moment: int, key: int) -> list[Record]:
        """Return the writes to a storage that were taken since a moment and that nobody has asked `records` for."""
        return list(map(Record._make, self._native.writes_since(moment, key)))

    def around_steps(
        self,
        before: Callable[..., None],
        after: Callable[..., None],
        is_ours: Callable[[type], bool | None],
        about: Callable[[type, bool, Place | None], tuple[Written, Step] | None],
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return what to call before and after each step of an optimizer.

        They take the usual steps, and call `before` and `after` for all others. `is_ours` returns whether a type of
        optimizers is PyTorch's own; `about` returns what a record says of a step: of which type, whether it is fused,
        and where.
        """
        asked = self._asked
        asked.before_step, asked.after_step, asked.is_ours, asked.about_step = before, after, is_ours, about
        return self._native.before_step, self._native.after_step

    def around_backward(
        self, begins: Callable[..., Backward | None], ends: Callable[..., None], lines: int
    ) -> tuple[Callable[..., Backward | None], Callable[..., None]]:
        """Return what to call before and after each backward call.

        They take the plain calls under `install`, and call `begins` and `ends` for all others. `lines` is for how many
        lines `Thread.boundaries` holds when they last ran a backward.
        """
        asked = self._asked
        asked.begins, asked.ends, asked.lines = begins, ends, lines
        return self._native.begin_backward, self._native.end_backward

    def enter(
        self,
        hooks: Pair | None,
        handed: object,
        *,
        contents: bool,
        keeping: bool = False,
        moved: object = None,
    ) -> None:
        """Take the writes of a thread; and its saves, where `hooks` is noclobber's own pair and not None.

        `contents` says that saves get fingerprints, `keeping` that bytes are preserved. `moved` is that of
        `Contents` where it is `only_foreign`.
        """
        self._native.enter(*(hooks or (None, None)), handed, contents, keeping, moved)
