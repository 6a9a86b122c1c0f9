"""The bytes of tensors over time, and how far the peak falls if some of them share memory that is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """Bytes that one way of writing the program would not need, from one moment until before another.

    A moment is an index into the list of the bytes that were alive, which has an entry for each storage made or freed.
    """

    begin: int
    end: int
    bytes: int


class Fall(NamedTuple):
    """The bytes by which a peak falls: after the falls before this one, and by itself."""

    bytes: int
    alone: int


Key = tuple[object, ...]


def falls(live: Sequence[int], groups: Mapping[Key, Sequence[Interval]]) -> dict[Key, Fall]:
    """Return the bytes by which the peak of `live` falls, for each group of intervals that makes it fall.

    The group that makes it fall the furthest comes first. Each further one is counted after those before it: the sum of
    all is what they bring together. Intervals of one group may overlap.
    """
    if not live:
        return {}
    spans = _Spans(live, [one for group in groups.values() for one in group])
    left = {key: spans.relief(group) for key, group in groups.items()}
    highest = max(spans.most)
    alone = {key: highest - spans.highest_without(relief) for key, relief in left.items()}
    found: dict[Key, Fall] = {}
    while left:
        peak, at = max((most, index) for index, most in enumerate(spans.most))
        best, lowest = None, peak
        for key, relief in left.items():
            if relief.get(at):  # else the peak stays
                after = spans.highest_without(relief)
                if after < lowest:
                    best, lowest = key, after
        if best is None:
            break
        found[best] = Fall(peak - lowest, alone[best])
        for index, size in left.pop(best).items():
            spans.most[index] -= size
    return found


class _Spans:
    """The moments between the ends of intervals, each span with the most bytes that are alive in it."""

    def __init__(self, live: Sequence[int], intervals: Sequence[Interval]) -> None:
        cuts = {0, *(one.begin for one in intervals), *(min(one.end, len(live)) for one in intervals)} - {len(live)}
        starts = sorted(cuts)
        self._index = {start: index for index, start in enumerate(starts)}
        self._index[len(live)] = len(starts)
        self.most = [max(live[start:end]) for start, end in zip(starts, [*starts[1:], len(live)], strict=True)]
        self._count = len(live)

    def highest_without(self, relief: Mapping[int, int]) -> int:
        return max(most - relief.get(index, 0) for index, most in enumerate(self.most))

    def relief(self, group: Sequence[Interval]) -> dict[int, int]:
        """Return the bytes that a group does not need, by the index of the span."""
        sums: dict[int, int] = {}
        for one in group:
            for index in range(self._index[one.begin], self._index[min(one.end, self._count)]):
                sums[index] = sums.get(index, 0) + one.bytes
        return sums
