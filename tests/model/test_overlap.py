"""Byte overlap of strided views, against the sets of bytes themselves."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from noclobber.model.seen.overlap import Region, overlap


@st.composite
def regions(draw):
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    dims = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 12)), max_size=4))
    offset = draw(st.integers(0, 60)) * itemsize
    return Region(offset, tuple(size for size, _ in dims), tuple(stride * itemsize for _, stride in dims), itemsize)


def bytes_of(region):
    starts = (
        region.offset + sum(i * stride for i, stride in zip(index, region.strides, strict=True))
        for index in itertools.product(*map(range, region.shape))
    )
    return {start + byte for start in starts for byte in range(region.itemsize)}


@given(regions(), regions())
@settings(max_examples=300, deadline=None)
def test_overlap_is_exact(one, other):
    assert overlap(one, other) == bool(bytes_of(one) & bytes_of(other))
    assert overlap(other, one) == overlap(one, other)


@given(regions())
def test_the_span_of_a_region_is_that_of_its_bytes(region):
    touched = bytes_of(region)
    if touched:
        assert (region.first(), region.end()) == (min(touched), max(touched) + 1)


def test_interleaved_columns_do_not_overlap_though_their_spans_do():
    first, second = Region(0, (1000, 1), (8, 4), 4), Region(4, (1000, 1), (8, 4), 4)
    assert first.end() > second.first()
    assert not overlap(first, second)
    assert overlap(first, Region(0, (2000,), (4,), 4))


def test_an_expanded_view_is_the_bytes_it_repeats():
    assert not overlap(Region(0, (1000, 3), (0, 4), 4), Region(12, (1,), (4,), 4))
    assert overlap(Region(0, (1000, 3), (0, 4), 4), Region(8, (1,), (4,), 4))


def test_nothing_overlaps_an_empty_view():
    assert not overlap(Region(0, (0, 3), (12, 4), 4), Region(0, (3,), (4,), 4))
