"""Each program here may look for holders as if it were the first of its process."""

import pytest

from noclobber.observe.describe import holders


@pytest.fixture(autouse=True)
def nothing_was_looked_at_before():
    holders.spent.clear()
