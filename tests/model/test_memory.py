"""How far a peak falls, against the timeline counted byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from noclobber.model.seen.memory import Fall, Interval, Key, falls


def without(live: Sequence[int], intervals: Sequence[Interval]) -> list[int]:
    """The bytes that are alive if those of the intervals are not."""
    return [
        alive - sum(one.bytes for one in intervals if one.begin <= moment < one.end)
        for moment, alive in enumerate(live)
    ]


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[int], dict[Key, list[Interval]]]:
    live = draw(st.lists(st.integers(20, 60), min_size=1, max_size=12))
    moments = st.integers(0, len(live))
    groups: dict[Key, list[Interval]] = {}
    for number in range(draw(st.integers(0, 4))):
        ends = draw(st.lists(st.tuples(moments, moments, st.integers(1, 9)), max_size=3))
        groups[number,] = [Interval(min(a, b), max(a, b) + 2, size) for a, b, size in ends if min(a, b) < len(live)]
    return live, groups


@given(timelines())
@settings(max_examples=100, deadline=None)
def test_a_fall_is_the_difference_of_the_peaks(drawn: tuple[list[int], dict[Key, list[Interval]]]) -> None:
    live, groups = drawn
    found, peak = falls(live, groups), max(live)
    applied: list[Interval] = []
    for key, fall in found.items():
        assert fall.alone == max(live) - max(without(live, groups[key]))
        before = max(without(live, applied))
        applied += groups[key]
        assert fall.bytes == before - max(without(live, applied)) > 0
    left = {key: intervals for key, intervals in groups.items() if key not in found}
    lowest = max(without(live, applied))
    assert all(max(without(live, [*applied, *intervals])) == lowest for intervals in left.values())
    assert sum(fall.bytes for fall in found.values()) == peak - lowest


def test_what_lies_beside_the_peak_lowers_nothing() -> None:
    live, groups = [4, 8, 4, 12, 4], {("a",): [Interval(1, 2, 4)], ("b",): [Interval(3, 4, 4)]}
    assert falls(live, groups) == {("b",): Fall(4, 4)}


def test_what_is_at_the_next_peak_comes_after() -> None:
    live, groups = [4, 10, 4, 12, 4], {("a",): [Interval(1, 2, 4)], ("b",): [Interval(3, 4, 4)]}
    assert falls(live, groups) == {("b",): Fall(2, 2), ("a",): Fall(2, 0)}


def test_two_equal_peaks_fall_only_together() -> None:
    groups: Mapping[Key, Sequence[Interval]] = {("a",): [Interval(1, 2, 4)], ("b",): [Interval(3, 4, 4)]}
    assert falls([4, 8, 4, 8, 4], groups) == {}


def test_nothing_was_alive() -> None:
    assert falls([], {}) == {}
