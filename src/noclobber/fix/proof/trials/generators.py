"""Random numbers: each trial draws the same, so that what is compared differs by the patch alone.

Every generator that the program does not seed itself begins from a state that is the same in each trial. What a program
asks the operating system for (`os.urandom`, `secrets`, `uuid4`) stays what it is.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from noclobber.session.imports import after_import

SEED = 0
_entropy = random.Random(SEED)
"""What stands in for the operating system's, where a generator is made or seeded without a seed."""


def begin() -> None:
    """Set the states of Python's generators, and of numpy's as soon as it is imported."""
    native = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        native(self, _entropy.getrandbits(64) if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = random.getstate.__self__.seed  # type: ignore[attr-defined]
    random.seed(SEED)
    after_import("numpy", _begin_numpy)


def _begin_numpy() -> None:
    """`default_rng()` and `RandomState()` take what they begin from out of `randbits` (numpy 1.25 to 2.4)."""
    numpy = sys.modules["numpy"]
    numpy.random.seed(SEED)
    numpy.random.bit_generator.randbits = _entropy.getrandbits


def begin_torch() -> None:
    """The same of torch, which is imported: bare it begins from another state in each process (torch 2.10 to 2.15)."""
    torch: Any = sys.modules["torch"]

    def seed() -> int:
        """Set the seed for generating random numbers to a number that is not the same for each call."""
        number = _entropy.getrandbits(63)
        torch.manual_seed(number)
        return number

    torch.manual_seed(SEED)
    torch.seed = torch.random.seed = seed
