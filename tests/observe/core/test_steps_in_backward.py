"""A step in a hook says whether it ran in a backward, and whether that backward ran inside another."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import noclobber
from tests.observe.hearing import hear


class Hooked(nn.Module):
    """Steps each parameter when its gradient is there."""

    def __init__(self):
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        for parameter in self.layer.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())


def two_losses(net):
    y = net.layer(torch.ones(2, 4, requires_grad=True))
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()


def shared(net, reentrant):
    h = net.layer(torch.ones(2, 4, requires_grad=True))
    checkpoint(lambda t: net.layer(t).tanh(), h, use_reentrant=reentrant).sum().backward()


@pytest.mark.parametrize(
    ("program", "nested"),
    [(two_losses, False), (lambda net: shared(net, reentrant=True), True)],
    ids=["plain", "nested"],
)
def test_where_a_step_ran(program, nested):
    def run():
        with pytest.raises(RuntimeError):
            program(Hooked())

    heard, _ = hear(run)
    steps = [write for clobber in heard.clobbers for write in clobber.writes]
    assert {(write.in_forward, write.nested) for write in steps} == {(False, nested)}


def test_the_help_is_right():
    with noclobber.watch() as seen:
        shared(Hooked(), reentrant=False)
    assert not seen.findings
