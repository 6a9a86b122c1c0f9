"""Numbers with their units."""

from __future__ import annotations

import pytest

from noclobber.model.units import size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1549, "1.5 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (999_999_999, "1.0 GB"),
        (999_960_000_000, "1.0 TB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_a_size_has_the_unit_in_which_it_is_short(count: int, text: str) -> None:
    assert size(count) == text
