"""The bytes that saves keep alive for backward, at their peak: by line, module and operator."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from noclobber.model.plain import some_of


@dataclass(frozen=True, slots=True)
class Entry:
    """Storages that one line of one module saved for one kind of node. Each storage counts for who saved it first.

    `path` and `line` are empty and 0 where the line is not known. `node` is such as "ReluBackward0", and empty where no
    backward has begun. A `parameter` or a `buffer` of a module lives anyway, whether it is saved or not.
    """

    path: str
    line: int
    column: int
    module: str
    node: str
    bytes: int
    storages: int
    parameter: bool = False
    source: str = ""
    op: str = ""
    """The operator in words: "relu" for "ReluBackward0"."""
    buffer: bool = False

    @property
    def lives_anyway(self) -> bool:
        """Return True for what the save does not keep alive."""
        return self.parameter or self.buffer


@dataclass(frozen=True, slots=True)
class Peak:
    """All that was alive on a device when it was the most, in a run without values.

    `room` is the device's memory, 0 for one without a limit. `activations` are what is none of the others: saves, and
    tensors that are computed with.
    """

    device: str
    room: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was alive in saves when the bytes were the most, the largest entry first.

    `path` and `line` are those of the save that made the peak; `backwards` is how many backward calls had begun.
    `peaks` are those of each device, where all memory is counted. There `in_place` is how far the peak falls if `lines`
    write in place.
    """

    entries: tuple[Entry, ...] = ()
    path: str = ""
    line: int = 0
    backwards: int = 0
    peaks: tuple[Peak, ...] = ()
    in_place: int = 0
    lines: int = 0

    @property
    def kept(self) -> list[Entry]:
        """What the saves keep alive: no parameters and buffers."""
        return [one for one in self.entries if not one.lives_anyway]

    @property
    def bytes(self) -> int:
        """The bytes of that."""
        return sum(one.bytes for one in self.kept)

    @property
    def storages(self) -> int:
        """In how many storages they are."""
        return sum(one.storages for one in self.kept)

    @property
    def parameters(self) -> int:
        """The bytes of the parameters among the saves."""
        return sum(one.bytes for one in self.entries if one.parameter)

    @property
    def buffers(self) -> int:
        """The bytes of the buffers of modules among the saves."""
        return sum(one.bytes for one in self.entries if one.buffer)


MOST = 30
"""How many entries are shown, each by itself."""
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""Where a module stands in a list of modules."""


def shown(ledger: Ledger) -> list[Entry]:
    """Return what the saves keep alive, the largest first. Of more than `MOST` entries, those of modules that differ
    only in where they stand in lists are one: "Model.layers.0-79.mlp"."""
    if len(ledger.kept) <= MOST:
        return ledger.kept
    alike: dict[tuple[object, ...], list[Entry]] = {}
    for one in ledger.kept:
        alike.setdefault((one.path, one.line, one.node, one.op, _INDEX.sub("*", one.module)), []).append(one)
    return sorted(map(_as_one, alike.values()), key=lambda one: -one.bytes)


def _as_one(alike: list[Entry]) -> Entry:
    places = [set(map(int, each)) for each in zip(*(_INDEX.findall(one.module) for one in alike), strict=True)]
    spans = iter([f"{min(at)}-{max(at)}" if len(at) > 1 else f"{min(at)}" for at in places])
    module = _INDEX.sub(lambda _: next(spans), alike[0].module)
    size, count = sum(one.bytes for one in alike), sum(one.storages for one in alike)
    return replace(alike[0], module=module, bytes=size, storages=count)


_BLOCK = re.compile(r"(.+?)\.(\d+)\.")
"""The path of a module inside one of a list: "Model.layers.0.norm"."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A list of modules, `Model.layers`; `bytes` is what all of them keep but the one that keeps the most."""

    module: str
    count: int
    bytes: int


def repeated(ledger: Ledger) -> Blocks | None:
    """Return the list of modules that keeps the most for backward; None without one.

    Activation checkpointing of each module frees at most its `bytes`: the inputs of the modules stay, and backward
    runs one module at a time again.
    """
    kept: dict[str, dict[str, int]] = {}
    for one in ledger.entries:
        if not one.lives_anyway and (found := _BLOCK.match(one.module)) is not None:
            of_each = kept.setdefault(found[1], {})
            of_each[found[2]] = of_each.get(found[2], 0) + one.bytes
    lists = [Blocks(name, len(each), sum(each.values()) - max(each.values())) for name, each in kept.items()]
    return max((one for one in lists if one.count > 1), key=lambda one: one.bytes, default=None)


def ledger_out(ledger: Ledger) -> dict[str, Any]:
    document = {
        **some_of(ledger, "bytes", "parameters", "buffers", "path", "line", "backwards"),
        "entries": [asdict(one) for one in ledger.entries],
    }
    if ledger.peaks:
        document |= {"peaks": [asdict(one) for one in ledger.peaks], **some_of(ledger, "in_place", "lines")}
    return document
