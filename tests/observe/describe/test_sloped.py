"""An activation in place with a negative slope is refused in backward: the line that wrote is shown all the same."""

import pytest
import torch
from torch.nn import functional as F

import noclobber

ACTIVATIONS = {
    "leaky_relu": lambda h: F.leaky_relu(h, -0.2, inplace=True),
    "rrelu": lambda h: F.rrelu(h, -0.3, -0.2, inplace=True),
    "elu": lambda h: F.elu(h, -0.2, inplace=True),
    "celu": lambda h: F.celu(h, -0.2, inplace=True),
}


def labels(*activations):
    x = torch.ones(4, requires_grad=True)
    seen = noclobber.watch()

    def program():
        with seen:
            sum(one(x * -2).sum() for one in activations).backward()

    with pytest.raises(RuntimeError, match="negative slope"):
        program()
    (finding,) = seen.findings
    return {one.role: one.span.line for one in finding.labels}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_the_write_is_named(activation):
    found = labels(activation)
    assert found["write"] == activation.__code__.co_firstlineno
    assert found["read"] == labels.__code__.co_firstlineno + 6


def test_of_two_that_may_be_meant_none_is():
    assert "write" not in labels(ACTIVATIONS["leaky_relu"], ACTIVATIONS["rrelu"])
