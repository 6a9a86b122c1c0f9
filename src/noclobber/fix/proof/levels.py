"""How sure a patch is."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """In this order: what a later one says is less."""

    PROVEN = "proven"
    """Its gradients are those of the program with its saves kept, and nothing else that it does is different."""
    CHECKED = "checked"
    """PyTorch refuses the write. The patched program computes what the program computes with gradients off, and its
    gradient is the derivative of that."""
    UNPROVEN = "unproven"
    """Its gradients could not be compared."""
