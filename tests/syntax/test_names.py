"""What names mean in a source."""

from __future__ import annotations

import pytest

from noclobber.syntax.names import has_torch

from .sources import parsed


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("import torch\n", True),
        ("import os, torch.nn\n", True),
        ("import torch.nn as nn\n", False),
        ("import torch as th\n", False),
        ("def f():\n    import torch\n", False),
        ("import torch\ntorch = None\n", False),
        ("import torch\ndef f(torch=None):\n    pass\n", False),
    ],
)
def test_torch_is_pytorch_where_it_is_imported_at_the_top_and_bound_to_nothing_else(text: str, is_there: bool) -> None:
    assert has_torch(parsed(text)) == is_there
