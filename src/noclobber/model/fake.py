"""What a fake run is asked for: how many steps, which device, which rank, which batches."""

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
        return _GPUS[self.name][1]

    @property
    def capability(self) -> tuple[int, int]:
        return _GPUS[self.name][2]


_ON_A_NODE = 8
"""GPUs of a machine that is one of many."""


def gpu_of(text: str, world_size: int = 0) -> Gpu:
    """Read "cuda", "cuda:8", "cuda:H100" or "cuda:8xH100". Where no count is given, each rank of a node has its own.
    Raises ValueError with words for a person."""
    found = re.fullmatch(r"(cuda|xpu|cpu)(?::(?:0*([1-9]\d*)(?:x|$))?([A-Za-z]\w*)?)?", text)
    known = {name.lower(): name for name in _GPUS}
    name = known.get((found[3] or "H100").lower()) if found else None
    if found is None or name is None:
        raise ValueError(f"{text!r} is not a device: write cuda, cuda:8xH100, xpu or cpu; GPUs: {', '.join(_GPUS)}")
    count = int(found[2] or min(max(world_size, 1), _ON_A_NODE))
    return Gpu(found[1], 0 if found[1] == "cpu" else count, name)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor of a batch; `dtype` is PyTorch's name."""

    sizes: tuple[int, ...]
    dtype: str


Batch = Shape | list[Shape] | dict[str, Shape]
_DTYPES = (
    "float32", "float64", "float16", "bfloat16", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_SHAPE = re.compile(r"(?:([^\W\d]\w*)=)?(\d+(?:x\d+)*)(?::(\w+))?")
_GIVER = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)\(\)=")


def shapes_of(text: str) -> tuple[str, Batch]:
    """Read "get_batch()=12x1024:int64,12x1024:int64" as the name of a function and the batch that it gives. The name is
    empty where none is said. Raises ValueError with words for a person."""
    found = _GIVER.match(text)
    return (found[1], batch_of(text[found.end() :])) if found is not None else ("", batch_of(text))


def batch_of(text: str) -> Batch:
    """Read "input_ids=8x4096:int64,labels=8x4096:int64" as a dict, "8x3x224x224,8:int64" as a list, "8x3x224x224" as a
    tensor. A tensor is float32 where nothing is said. Raises ValueError with words for a person."""
    named: list[tuple[str, Shape]] = []
    for one in text.removesuffix(",").split(","):
        found = _SHAPE.fullmatch(one.strip())
        if found is None:
            raise ValueError(f"{one!r} is not the shape of a tensor: write input_ids=8x4096:int64, or 8x3x224x224")
        dtype = found[3] or "float32"
        if dtype not in _DTYPES:
            raise ValueError(f"{dtype!r} is not a dtype: write one of {', '.join(_DTYPES)}")
        named.append((found[1] or "", Shape(tuple(map(int, found[2].split("x"))), dtype)))
    names, shapes = [name for name, _ in named], [shape for _, shape in named]
    if not any(names):
        return shapes[0] if len(shapes) == 1 and not text.endswith(",") else shapes
    if not all(names):
        raise ValueError(f"{text!r} names some of its tensors: name all for a dict, or none for a list")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{text!r} names `{twice[0]}` twice")
    return dict(named)


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
    batch: Batch | None = None
    """What a data loader gives in place of its data; None for the data."""
    giver: str = ""
    """A function of the program's file that gives the batch, in place of a data loader."""
    is_program: bool = False
    """Whether the whole program is inside, so that no tensor was there before."""
