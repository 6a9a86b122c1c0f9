"""A leaf has the same name in two runs of a program, wherever the program keeps it."""

from collections.abc import Mapping

import pytest
import torch

from noclobber.observe.gradient_trace import leaf_names


class Holder:
    def __init__(self, tensor):
        self.weights = {"first": tensor}


def test_names_lead_through_modules_containers_and_plain_objects():
    net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    loose, params, holder = torch.ones(2), [torch.ones(2)], Holder(torch.ones(2))
    found = leaf_names.names()
    here = "test_names_lead_through_modules_containers_and_plain_objects: "
    got = [found.name_of(one).removeprefix(here) for one in (net[0].weight, loose, params[0], holder.weights["first"])]
    assert got == ["net.0.weight", "loose", "params[0]", "holder.weights['first']"]
    assert found.modules[here + "net"] is net


def test_a_view_is_not_asked_whether_it_is_a_leaf():
    """Reading `is_leaf` of the second view would make this program run, which PyTorch refuses (torch 2.13)."""
    x = torch.ones(2, requires_grad=True)
    buffer = torch.zeros(4)
    first, second = buffer[:2], buffer[2:]
    first.copy_(x)
    leaf_names.names()
    with pytest.raises(RuntimeError, match="leaf"):
        second.mul_(2)


class MadeWhenAsked(Mapping):
    def __getitem__(self, key):
        return torch.ones(2)

    def __iter__(self):
        return iter("ab")

    def __len__(self):
        return 2


def test_what_a_mapping_makes_when_asked_lends_its_name_to_nothing_else():
    made = MadeWhenAsked()
    found = leaf_names.names()
    assert len(made) == 2
    assert {found.name_of(torch.ones(2)) for _ in range(100)} == {""}
