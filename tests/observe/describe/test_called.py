"""A finding names the module that was called when the write happened, and the calls that lead to the write."""

import gc
import weakref

import pytest
import torch
from torch import nn

import noclobber
from noclobber.model.reports.report import Report
from noclobber.model.seen.events import MOST_CALLS
from noclobber.render import window
from tests.observe.hearing import is_marked

pytestmark = pytest.mark.usefixtures("looks_anew")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Linear(3, 3)
        self.act = nn.Sigmoid()

    def forward(self, x):
        h = self.act(self.conv1(x))
        h += x
        return h


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return self.blocks(x)


class Trainer:
    def __init__(self, model):
        self.model = model

    def loss(self):
        return self.model(torch.ones(2, 3)).sum()


def found(program):
    with pytest.raises(RuntimeError), noclobber.watch() as seen:
        program().sum().backward()
    (finding,) = seen.findings
    (read,) = Report.from_json(Report((finding,)).to_json()).findings
    assert (read.modules, [one.line for one in read.calls]) == (finding.modules, [one.line for one in finding.calls])
    return finding


def a_variable():
    net = Net(Block())
    return net(torch.ones(2, 3))


def an_attribute_of_self():
    return Trainer(Net(Block())).loss()


def no_variable():
    return Net(Block())(torch.ones(2, 3))


def an_operation_in_place():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.ReLU(inplace=True))
    return net(torch.ones(2, 3))


def two_of_a_kind():
    net = Net(Block(), Block())
    return net(torch.ones(2, 3))


def more_than_are_looked_for():
    net = Net(*(Block() for _ in range(5)))
    return net(torch.ones(2, 3))


def no_module():
    h = torch.ones(3, requires_grad=True).exp()
    h += 1
    return h


NAMES = {
    a_variable: ("net.blocks.0",),
    an_attribute_of_self: ("self.model.blocks.0",),
    no_variable: ("Net.blocks.0",),
    an_operation_in_place: ("net.2",),
    two_of_a_kind: ("net.blocks.0", "net.blocks.1"),
    more_than_are_looked_for: ("net.blocks.0", "net.blocks.1", "net.blocks.2"),
    no_module: (),
}


@pytest.mark.parametrize("program", NAMES, ids=lambda one: one.__name__)
def test_a_module_goes_by_the_name_that_the_program_has_for_it(program):
    assert found(program).modules == NAMES[program]


def test_the_report_says_where_and_by_which_calls():
    text = window(found(more_than_are_looked_for))
    assert (
        "note: the line that writes was seen in the modules `net.blocks.0`, `net.blocks.1` and others, first called by "
        in text
    )


def test_the_calls_lead_to_the_write():
    finding = found(a_variable)
    last = finding.calls[-1].span()
    assert (last.path, last.line) == (finding.primary.span.path, finding.primary.span.line)
    assert [one.code.co_name for one in finding.calls][-4:] == ["found", "a_variable", "forward", "forward"]


def test_of_many_calls_the_first_and_the_last_are_kept():
    def deeper(turns):
        return deeper(turns - 1) if turns else no_module()

    calls = found(lambda: deeper(40)).calls
    assert len(calls) == MOST_CALLS + 1
    assert [one.code.co_name for one in calls[1:]] == ["deeper"] * (MOST_CALLS - 1) + ["no_module"]


def test_no_module_lives_longer_for_it():
    nets = []

    def program():
        net = Net(Block())
        nets.append(weakref.ref(net))
        return net(torch.ones(2, 3))

    finding = found(program)
    gc.collect()
    assert nets[0]() is None
    assert finding.modules == ("net.blocks.0",)


def _updated(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_two_calls_of_an_update_are_told_apart_from_two_turns_of_a_loop():
    body, head = (nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)) for _ in range(2))
    mine, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (head, body))
    with noclobber.watch() as watched:
        made = body(torch.randn(4, 2))
        first, hidden = head(made.detach()).mean(), head[0](made)
        second = -head[2](head[1](hidden)).mean()
        _updated(mine, first)
        with pytest.raises(RuntimeError):
            _updated(theirs, second)
    assert len(watched.findings) == 2
    for finding in watched.findings:  # the second one is told when the call of `backward` is over
        told = " ".join([*finding.notes, *(one.message for one in finding.suggestions)])
        line = finding.event.read.calls[-2].line
        assert f"the call on line {line - 2} steps, that on line {line} goes backward" in told
        assert "loop" not in told
        assert "earlier iteration" not in told


class Batch:
    def normalise(self):
        with torch.no_grad():
            self.a.sub_(1)  # shown
            self.a.div_(2)


def written_twice():
    batch, w = Batch(), torch.ones(3, requires_grad=True)
    batch.a = 3 - w
    loss = batch.a.pow(2)
    batch.normalise()
    return loss


def test_the_calls_lead_to_the_line_that_is_shown():
    finding = found(written_twice)
    assert finding.calls[-1].line == finding.primary.span.line
    assert is_marked(finding.calls[-1], "shown")
