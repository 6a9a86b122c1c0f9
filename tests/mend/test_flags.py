"""Where modules and functions take `inplace`, asked of the installed torch."""

from __future__ import annotations

import inspect

import pytest
from torch import nn
from torch.nn import functional

from noclobber.syntax.writes import FLAG_AT


def has_signature(one):
    return inspect.isfunction(one) or (inspect.isclass(one) and issubclass(one, nn.Module))


NAMES = {
    name: one for name, one in (vars(nn) | vars(functional)).items() if has_signature(one) and not name.startswith("_")
}


@pytest.mark.parametrize("name", sorted(NAMES | FLAG_AT))
def test_the_place_of_the_flag(name):
    taken = list(inspect.signature(NAMES[name]).parameters)
    assert FLAG_AT.get(name) == (taken.index("inplace") if "inplace" in taken else None)
