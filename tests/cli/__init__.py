"""The command line: programs run as under `python`, reports, explanations, refusals."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.running")
