"""Clobber: a save, the writes that changed its bytes, and the read that then got other bytes."""

from __future__ import annotations

from dataclasses import dataclass

from noclobber.model.seen.events import Carried, Optimizer, Read, Save, Write


@dataclass(frozen=True, slots=True)
class Clobber:
    """A save, the writes that changed its bytes after it was saved, and the read that then got other bytes.

    `current` is the version at read; equal to `save.version` where nothing counted the write (PyTorch stays silent).
    `message` is the error that PyTorch raises, None where it stays silent. `restored`: something has put the bytes back
    that were saved, as fingerprints show. `stopped`: noclobber has stopped the write before it happened.
    """

    save: Save
    writes: tuple[Write, ...]
    read: Read
    current: int
    message: str | None = None
    restored: bool = False
    stopped: bool = False
    carried: tuple[Carried, ...] = ()
    are_all_carried: bool = False
    """As of a `Refusal`, for a graph that is older than the last backward of the line, and whose weights were stepped.
    """

    is_run_anew: bool = False
    """As of a `Refusal`, of the leaf that was saved."""
    optimizers: tuple[Optimizer, ...] = ()
    """Where a step has written and the program has several optimizers, all PyTorch's own: these."""
    constants: tuple[str, ...] = ()
    """The variables of functions that lead to the read, and attributes of `self`, that hold numbers or tensors which
    require no gradient, or rows of such, wherever these functions have that name. Known where `optimizers` are."""
    spent: tuple[str, ...] = ()
    """The variables of these functions whose graph leads to nothing but leaves that a step has changed since."""

    @property
    def raised(self) -> bool:
        """Whether PyTorch itself notices."""
        return self.message is not None
