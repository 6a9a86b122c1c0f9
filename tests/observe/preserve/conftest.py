"""The same programs with small tensors and with large ones, which go without fingerprints while nobody else writes."""

from contextlib import nullcontext

import pytest

from tests.observe.sizes import as_large


@pytest.fixture(params=["small", "large"])
def either_size(request):
    """Tensors as they are, then treated as large."""
    with as_large() if request.param == "large" else nullcontext():
        yield
