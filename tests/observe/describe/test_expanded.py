"""A refused write is known to be to a part of an expanded leaf: with gradients off it changes other parts as well."""

import pytest
import torch

import noclobber
from noclobber.observe.describe.refusals import OVERLAPPING

ONE, ROWS, ALL = torch.tensor([0]), torch.tensor([[True], [False], [False]]), torch.ones(3, 3)
WRITES = {
    "fill_": lambda t: t.fill_(2.0),
    "zero_": lambda t: t.zero_(),
    "index_fill_": lambda t: t.index_fill_(0, ONE, 2.0),
    "index_put_": lambda t: t.index_put_((ONE,), torch.tensor(2.0)),
    "masked_fill_": lambda t: t.masked_fill_(ROWS, 2.0),
    "fill_diagonal_": lambda t: t.fill_diagonal_(2.0),
    "tril_": lambda t: t.tril_(),
    "triu_": lambda t: t.triu_(),
    "add_": lambda t: t.add_(1.0),
    "copy_": lambda t: t.copy_(ALL),
    "index_copy_": lambda t: t.index_copy_(0, ONE, ALL[:1]),
    "scatter_": lambda t: t.scatter_(0, ONE[:, None], 2.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_some_operators_write_what_shares_memory_and_others_refuse(name):
    """A fact of PyTorch on which `Refusal.expanded` rests."""
    expanded = torch.ones(1, 3).expand(3, 3)
    if name not in OVERLAPPING:
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            WRITES[name](expanded)
    else:
        rows = WRITES[name](expanded)
        assert not torch.equal(rows, torch.ones(3, 3)) or name in ("tril_", "triu_")
        assert torch.equal(rows[0], rows[2])


def refusal(write):
    leaf = torch.ones(1, 3, requires_grad=True)
    seen = noclobber.watch()
    with pytest.raises(RuntimeError, match="view of a leaf"), seen:
        write(leaf)
    (finding,) = seen.findings
    return finding.event


@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_is_written_even_so_is_told(name):
    assert refusal(lambda leaf: WRITES[name](leaf.expand(3, 3))).expanded


def test_a_row_of_what_is_expanded_is_told():
    assert refusal(lambda leaf: leaf.expand(3, 3)[0].add_(1.0)).expanded


def test_other_views_and_what_is_refused_anyway_are_not():
    assert not refusal(lambda leaf: leaf.expand(3, 3).add_(1.0)).expanded
    assert not refusal(lambda leaf: leaf.view(3)[0].zero_()).expanded
