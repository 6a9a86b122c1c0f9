"""What a fake run is asked for: how many steps, which device, which rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

STEPS = 3
GIGABYTE = 10**9
_GPUS = {
    "B200": (180, 148, (10, 0)),
    "H200": (141, 132, (9, 0)),
    "H100": (80, 132, (9, 0)),
    "A100": (80, 108, (8, 0)),
    "L40S": (48, 142, (8, 9)),
    "A10G": (24, 80, (8, 6)),
    "RTX4090": (24, 128, (8, 9)),
    "L4": (24, 58, (8, 9)),
    "V100": (32, 80, (7, 0)),
    "T4": (16, 40, (7, 5)),
}
"""Names of GPUs: memory in GB, multiprocessors, compute capability."""
KINDS = tuple(_GPUS)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that is played: `kind` is PyTorch's word for it, "cuda"; `count` is how many there are."""

    kind: str = "cuda"
    count: int = 1
    name: str = "H100"

    @property
    def bytes(self) -> int:
        """The memory of one device."""
        return _GPUS[self.name][0] * GIGABYTE

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors it has."""
        return _GPUS[self.name][1]

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return _GPUS[self.name][2]


def gpu_of(text: str) -> Gpu:
    """Read "cuda", "cuda:8", "cuda:H100" or "cuda:8xH100". Raises ValueError with words for a person."""
    found = re.fullmatch(r"(cuda|xpu|cpu)(?::(?:(\d+)(?:x|$))?([A-Za-z]\w*)?)?", text)
    known = {name.lower(): name for name in _GPUS}
    name = known.get((found[3] or "H100").lower()) if found else None
    if found is None or name is None or found[2] == "0":
        raise ValueError(f"{text!r} is not a device: write cuda, cuda:8xH100, xpu or cpu; GPUs: {', '.join(_GPUS)}")
    return Gpu(found[1], 0 if found[1] == "cpu" else int(found[2] or 1), name)


class Enough(BaseException):
    """Ends a program that has made as many steps as a fake run looks at. No `except Exception` of the program catches
    it."""


@dataclass(frozen=True, slots=True)
class FakeOrder:
    """What a fake run is asked for. `steps` is 0 where it does not stop by itself."""

    steps: int = STEPS
    gpu: Gpu = Gpu()
    world_size: int = 0
    rank: int = 0
    is_program: bool = False
    """Whether the whole program is inside, so that no tensor was there before."""
