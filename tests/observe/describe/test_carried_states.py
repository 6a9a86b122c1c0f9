"""NC104 names the state that carries a freed graph along, as the program can spell it, and the line that sets it."""

from functools import cached_property

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import noclobber


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.mem = torch.zeros(2, 3)
        self.out = None

    def forward(self, x):
        self.mem = torch.tanh(self.lin(x) + self.mem)  # mem
        self.out = torch.tanh(self.mem * 2)
        return self.out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Cell(), Cell()

    def forward(self, x):
        return self.two(self.one(x))


def train(step, backwards=lambda loss: loss.backward()):
    for _ in range(3):
        backwards(step(torch.ones(2, 3)).sum())


def attributes_of_submodules():
    net = Net()
    for _ in range(3):
        net(torch.ones(2, 3)).sum().backward()


def in_a_sequential():
    net = nn.Sequential(nn.Linear(3, 3), Cell())
    for _ in range(3):
        net(torch.ones(2, 3)).sum().backward()


def a_variable():
    lin, h = nn.Linear(3, 3), torch.zeros(2, 3)
    for _ in range(3):
        h = torch.tanh(lin(torch.ones(2, 3)) + h)  # h
        h.sum().backward()


def a_variable_and_a_copy_of_it():
    net, h = Cell(), torch.zeros(2, 3)
    net.mem = None
    for _ in range(3):
        h = torch.tanh(net.lin(torch.ones(2, 3)) + h)  # h
        net.out = h
        h.sum().backward()


def of_an_lstm():
    lstm, state = nn.LSTM(3, 4), (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    for _ in range(3):
        out, state = lstm(torch.ones(5, 1, 3), state)  # lstm
        out.sum().backward()


class Agent:
    def __init__(self):
        self.cell = nn.LSTMCell(3, 4)
        self.hidden = None

    def act(self, x):
        self.hidden = self.cell(x, self.hidden)  # hidden
        return self.hidden[0].sum()


def a_tuple_in_an_attribute():
    agent = Agent()
    train(agent.act)


def items_of_a_dict():
    lin, states = nn.Linear(3, 3), {"v": torch.zeros(2, 3)}
    for _ in range(3):
        states["v"] = torch.sigmoid(lin(states["v"]))  # dict
        states["v"].sum().backward()


def of_a_closure():
    lin, memory = nn.Linear(3, 3), torch.zeros(2, 3)

    def step(x):
        nonlocal memory
        memory = torch.sigmoid(lin(x) + memory)  # closure
        return memory

    train(step)


HELD = torch.zeros(2, 3)


def a_global():
    global HELD
    lin, HELD = nn.Linear(3, 3), torch.zeros(2, 3)
    for _ in range(3):
        HELD = torch.sigmoid(lin(HELD))  # global
        HELD.sum().backward()


def old_tensors_in_a_list():
    lin, bank = nn.Linear(3, 3), []
    for _ in range(3):
        bank.append(torch.sigmoid(lin(torch.ones(2, 3))))
        torch.stack(bank).sum().backward()


def a_running_loss():
    lin, total = nn.Linear(3, 3), 0
    for _ in range(3):
        total = total + lin(torch.ones(2, 3)).square().mean()  # total
        total.backward()


def with_two_losses():
    net, head = Cell(), nn.Linear(3, 1)
    for _ in range(3):
        y = net(torch.ones(2, 3))
        head(y.detach()).sum().backward()
        y.sum().backward()


NAMED = {
    attributes_of_submodules: (["net.one.mem", "net.two.mem"], "mem"),
    in_a_sequential: (["net[1].mem"], "mem"),
    a_variable: (["h"], "h"),
    a_variable_and_a_copy_of_it: (["h"], "h"),
    of_an_lstm: (["state"], "lstm"),
    a_tuple_in_an_attribute: (["agent.hidden"], "hidden"),
    items_of_a_dict: (["states['v']"], "dict"),
    of_a_closure: (["memory"], "closure"),
    a_global: (["HELD"], "global"),
    old_tensors_in_a_list: (["bank"], None),
    a_running_loss: (["total"], "total"),
    with_two_losses: (["net.mem"], "mem"),
}


def finding_of(program):
    with pytest.raises(RuntimeError, match="a second time"), noclobber.watch() as watched:
        program()
    (finding,) = watched.findings
    assert finding.code == "NC104"
    return finding


def words(finding):
    return " ".join([*finding.notes, *(one.message for one in finding.suggestions)])


@pytest.mark.parametrize(("program", "named"), NAMED.items(), ids=[one.__name__ for one in NAMED])
def test_the_state_is_named_and_the_line_that_sets_it(program, named):
    finding, (names, mark) = finding_of(program), named
    assert f"{' and '.join(f'`{name}`' for name in names)} lead" in finding.notes[0]
    forms = ("`{0} = {0}.detach()`", "`{0} = tuple(part.detach() for part in {0})`", "`{0}.clear()`")
    assert all(any(form.format(name) in words(finding) for form in forms) for name in names)
    shown = [one.source[0].rpartition("# ")[2] for one in finding.labels if one.role == "create"]
    assert shown == ([mark] if mark else [])


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.ones(3))

    @cached_property
    def factor(self):
        return self.raw.exp()


def test_what_is_computed_once_and_kept_is_not_to_be_detached():
    def program():
        net = Kept()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            (net.factor * net.raw).sum().backward()
            optimizer.step()

    told = words(finding_of(program))
    assert "run the forward inside the loop" in told
    assert "net.factor.detach()" not in told


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", self.raw.exp())

    def forward(self, x):
        return x * self.scale


def test_what_init_computes_of_a_parameter_is_to_be_computed_in_the_forward():
    def program():
        net = Scaled()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(torch.ones(3)).sum().backward()
            optimizer.step()

    told = words(finding_of(program))
    assert "compute in the forward what `__init__` computes from a parameter here" in told
    assert "run the forward inside the loop" not in told


def test_a_tuple_is_detached_part_by_part():
    assert "`state = tuple(part.detach() for part in state)`" in words(finding_of(of_an_lstm))


def two_heads():
    h = torch.ones(3, requires_grad=True).exp()
    kept = {"h": h}
    h.sin().sum().backward()
    kept["h"].cos().sum().backward()


def twice():
    net = Cell()
    loss = net(torch.ones(2, 3)).sum()
    loss.backward()
    loss.backward()


def built_before_the_loop():
    features, head = nn.Linear(3, 3)(torch.ones(2, 3)).exp(), nn.Linear(3, 1)
    for _ in range(3):
        head(features).sum().backward()


@pytest.mark.parametrize("program", [two_heads, twice, built_before_the_loop])
def test_no_state_is_named_where_none_is_carried(program):
    finding = finding_of(program)
    assert not any("of an earlier iteration" in note for note in finding.notes)
    assert not [one for one in finding.labels if one.role == "create"]


class Scale:
    """Divides by a running mean, which begins as the first value."""

    def __init__(self):
        self.value = None

    def __call__(self, loss):
        if self.value is None:
            self.value = loss
        else:
            self.value = 0.9 * self.value + 0.1 * loss  # value
        return loss / self.value


def of_running_means():
    net, scales = nn.Linear(3, 2), {"a": Scale(), "b": Scale()}
    for _ in range(3):
        out = net(torch.ones(4, 3))
        (scales["a"](out.square().mean()) + scales["b"](out.exp().mean())).backward()


def test_a_state_may_begin_as_another_operator_gave_it():
    finding = finding_of(of_running_means)
    assert finding.notes[0].startswith("`scales['a'].value` and `scales['b'].value` lead to")


def of_a_residual():
    lin, h = nn.Linear(3, 3), torch.zeros(2, 3)
    for _ in range(3):
        out = torch.ones(2, 3) + h
        h = lin(out).exp().mul(2)
        (out.sum() + h.sum()).backward()


def test_what_is_computed_from_a_state_is_none():
    assert "`out`" not in finding_of(of_a_residual).notes[0]


def of_checkpointed_regions():
    net = Cell()
    for _ in range(3):
        net.out = checkpoint(net.lin, torch.ones(2, 3) + net.mem, use_reentrant=False)
        net.mem = torch.tanh(net.out)
        net.mem.sum().backward()


def test_beside_checkpointed_regions_a_place_tells():
    assert "`net.mem` leads" in finding_of(of_checkpointed_regions).notes[0]


def of_an_episode(empty):
    """REINFORCE: the log-probabilities of an episode are kept in a list."""
    net, kept = nn.Linear(4, 2), []
    for _ in range(2):
        for _ in range(3):
            kept.append(torch.log_softmax(net(torch.ones(4)), -1)[0])
        torch.stack(kept).sum().backward()
        if empty:
            kept.clear()


def test_a_list_that_nothing_empties():
    seen = noclobber.watch()
    with pytest.raises(RuntimeError, match="a second time"), seen:
        of_an_episode(empty=False)
    (finding,) = seen.findings
    assert [one.message for one in finding.suggestions] == ["empty `kept` at the end of each iteration: `kept.clear()`"]
    of_an_episode(empty=True)
