"""A write that PyTorch refuses: what it was given is known, also where the native part has taken the write."""

import pytest
import torch

from noclobber.observe.arming import recorder
from tests.observe.hearing import Heard

WRITES = {
    "an item": lambda w, v: w.__setitem__(0, v),
    "a method": lambda w, v: w.mul_(v),
    "two values": lambda w, v: w.addcmul_(torch.ones(4), v),
    "indexes": lambda w, v: w.index_put_((torch.tensor([0]), torch.tensor([1])), v.sum()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("tracked", [True, False], ids=["in a graph", "a constant"])
def test_whether_what_is_written_is_in_a_graph(write, tracked):
    w, value = torch.nn.Parameter(torch.ones(3, 4)), torch.ones(4, requires_grad=tracked) * 2
    assert [one.carries_gradient for one in refused(lambda: write(w, value))] == [tracked]


@pytest.mark.parametrize("learned", [True, False], ids=["with a learned rate", "alone"])
def test_whether_the_graph_leads_to_the_written_leaf_alone(learned):
    w, rate = torch.nn.Parameter(torch.ones(3)), torch.full((), 0.1, requires_grad=learned)
    (refusal,) = refused(lambda: w.sub_(rate * (w + 1)))
    assert refusal.of_itself is not learned


def test_what_stood_in_a_list_is_not_said_to_be_a_constant():
    w, value = torch.nn.Parameter(torch.ones(3, 4)), torch.ones(4, requires_grad=True) * 2
    (refusal,) = refused(lambda: torch._foreach_add_([w], [value]))
    assert refusal.carries_gradient is not False


def refused(write):
    heard, refusals = Heard(contents=True), []
    heard.refused = lambda _, refusal: refusals.append(refusal)
    recorder.subscribe(heard)
    try:
        with pytest.raises(RuntimeError, match="leaf"):
            write()
    finally:
        recorder.unsubscribe(heard)
    return refusals
