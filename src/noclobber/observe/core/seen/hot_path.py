"""What core/ asks of the native part (native/bridge.py), which takes the usual saves and writes in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Protocol

import torch

from noclobber.model.events import Step
from noclobber.observe.core.seen.sites import Place
from noclobber.observe.torch_api.autograd.hook_stack import Pair
from noclobber.observe.witness.digests import Digest

if TYPE_CHECKING:
    from noclobber.observe.core.seen.records import Backward, Record
    from noclobber.observe.core.seen.written import Written
    from noclobber.observe.witness.witness import MemoryOf


SaveElsewhere = tuple[int, "int | None", int, "Place | None", Digest]
"""What is known of a save under other hooks than noclobber's: its version, its storage, the number of its node, the
place, and the fingerprint if bytes are compared."""


Looks = tuple[Sized, Mapping[int, object]]
"""What is called before every write, and what before the writes to a storage, by its key (`Context.attend`)."""


class HotPath(Protocol):
    """The native part. What it takes belongs to the thread that calls, if nothing else is said."""

    # -- saves, as a LiveSaves asks for them

    def hand_over(self, storage: int | None, /) -> None:
        """Put a Handle into the live table for every save on a storage, or for all saves (None)."""

    def meet(self, storage: int, tensor: torch.Tensor, begin: int, end: int, /) -> bool:
        """Put a Handle into the live table for every save that a write of a tensor to these bytes of a storage meets.

        Returns True if another save shares the tensor's version counter.
        """

    def alive(self) -> int:
        """Return how many saves there are of which no Handle was made, in all threads."""

    def place_of(self, node: int, /) -> Place | None:
        """Return where a node last saved; None if that is not known."""

    def place_here(self) -> Place | None:
        """Return the place of the program's line that runs, as `sites.place_of` does."""

    def save(self, tensor: torch.Tensor, contents: bool, /) -> SaveElsewhere | None:
        """Return what is known of a tensor that is being saved; None if only Python can tell."""

    def memory_of(self, tensor: torch.Tensor, /) -> MemoryOf | None:
        """Return what memory a tensor has; None if only Python can tell."""

    # -- writes

    def records(self) -> list[Record]:
        """Return the writes that were taken since the last call, oldest first, in all threads."""

    def views(self) -> list[tuple[int, str, Place | None]]:
        """Return the operators that returned several views since the last call, as `Memory.views` holds them."""

    def around_steps(
        self,
        before: Callable[..., None],
        after: Callable[..., None],
        is_ours: Callable[[type], bool],
        about: Callable[[type, bool, Place | None], tuple[Written, Step]],
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return what to call before and after each step of an optimizer.

        They take the usual steps, and call `before` and `after` for all others. `is_ours` returns whether a type of
        optimizers is PyTorch's own; `about` returns what a record says of a step: of which type, whether it is fused,
        and where.
        """

    def around_backward(
        self, begins: Callable[..., Backward | None], ends: Callable[..., None], lines: int, /
    ) -> tuple[Callable[..., Backward | None], Callable[..., None]]:
        """Return what to call before and after each backward call.

        They take the plain calls under `install`, and call `begins` and `ends` for all others. `lines` is for how many
        lines `Thread.boundaries` holds when they last ran a backward.
        """

    def backward_begins(self) -> Place | None:
        """Hear that this thread is about to call the engine: a step that raised is over. Return the place."""

    # -- the graph

    def gradients_behind(self, outputs: Sequence[torch.Tensor], /) -> Sequence[torch.Tensor]:
        """Return the gradients that leaves have already and that a backward from these tensors may add to."""

    # -- what it must know

    def begin(self, *, watching: bool, attentive: Looks) -> None:
        """Begin to take writes, and saves if `watching`. `attentive` says which writes Python wants to see."""

    def end(self) -> None:
        """Leave everything to Python."""

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

    def leave(self) -> None:
        """Leave this thread to Python."""

    def set_step(self, step: Step | None, stepped: frozenset[int | None] | None, /) -> None:
        """Hear to which step of an optimizer the writes of this thread belong from now on: those to the storages in
        `stepped`, and all where that is None."""

    def set_sharing(self, sharing: bool, /) -> None:
        """Hear whether a backward is under way in which bytes that are read twice need to be hashed once only."""

    def set_careful(self, careful: bool, /) -> None:
        """Hear whether writes to tensors in the graph must be checked too."""

    def set_keeping(self, keeping: bool, /) -> None:
        """Hear whether bytes are preserved."""

    def forget(self, *, places: bool) -> None:
        """Drop the records; with `places` also what is known of lines, which nobody may be using then."""
