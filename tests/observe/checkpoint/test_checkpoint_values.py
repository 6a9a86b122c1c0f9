"""Plain values that a checkpointed region reads: where one differs in the second run, the report names it."""

import functools
import itertools
import random
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.rules import explain
from tests.observe.hearing import bare, hear, is_marked

MODES = pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])


class Cache:
    def __init__(self):
        self.rows = torch.zeros(8, 3)
        self.pos = 0

    def put(self, row):
        self.rows[self.pos].copy_(row.detach())
        scaled = row * (1 + self.pos) + self.rows[self.pos]
        self.pos += 1  # changed
        return scaled


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        return self.cache.put(x).exp()


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_first = True

    def forward(self, x):
        y = x * 2 if self.is_first else x * 3
        self.is_first = False  # changed
        return y.exp()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(3)

    def forward(self, x):
        y = (x + self.hidden).exp()
        self.hidden = y.detach()  # changed
        return y


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = None

    def forward(self, x):
        shift = 0 if self.centre is None else self.centre
        self.centre = x.detach() + 1  # changed
        return (x - shift).exp()


class Evaluated(nn.Module):
    def forward(self, x):
        return (x * (2 if self.training else 3)).exp()


class Stacked(nn.Module):
    def forward(self, x, skipped):
        return (x * len(skipped)).exp() + skipped.pop()  # changed


def stacked():
    return made_by(Stacked(), lambda: None, [1.0, 2.0, 3.0])


class Gated(nn.Module):
    """A switch that is off when the region is built, on in forward, and off again in backward."""

    def __init__(self):
        super().__init__()
        self.is_engaged = False

    def forward(self, x):
        return (x * (3 if self.is_engaged else 2)).exp()


def gated():
    net = Gated()
    net.is_engaged = True

    def change():
        net.is_engaged = False  # changed

    return made_by(net, change)


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.depths_seen = []

    def forward(self, x):
        y = (x * (1 + len(self.depths_seen))).exp()
        self.depths_seen.append(1)  # changed
        return y


class Slotted:
    __slots__ = ("turns",)

    def __init__(self):
        self.turns = 1

    def region(self, x):
        self.turns = 1 + self.turns  # changed
        return (x * self.turns).exp()


class Restarted:
    def __init__(self):
        self.place = 7

    def restart(self):
        self.place = 0

    def region(self, x):
        self.place += 1  # changed
        return (x * self.place).exp()


def restarted():
    rows = Restarted()
    rows.restart()
    return rows.region


@dataclass
class Config:
    gain: float = 2.0


def leaf():
    return torch.ones(3, requires_grad=True)


def made_by(region, change=lambda: None, *args):
    def program(reentrant):
        x = leaf()
        y = checkpoint(region, x, *args, use_reentrant=reentrant)  # region
        change()
        y.sum().backward()
        return x.grad

    return program


def in_list():
    tallies = []

    def region(x):
        tallies.append(1)  # changed
        return (x * len(tallies)).exp()

    return made_by(region)


def in_dict():
    config = {"gain": 2}
    return made_by(
        functools.partial(lambda config, x: (x * config["gain"]).exp(), config), lambda: config.update(gain=3)
    )


def in_item():
    table = {"gain": 2}

    def change():
        table["gain"] = 3  # changed

    return made_by(lambda x: (x * table["gain"]).exp(), change)


def in_closure():
    gain = 2

    def change():
        nonlocal gain
        gain = 3  # changed

    return made_by(lambda x: (x * gain).exp(), change)


def in_argument():
    config = Config()

    def change():
        config.gain = 3.0  # changed

    return made_by(lambda x, settings: (x * settings.gain).exp(), change, config)


def in_namespace():
    config = SimpleNamespace(gain_of_it=2)

    def change():
        config.gain_of_it = 3  # changed

    return made_by(lambda x: (x * config.gain_of_it).exp(), change)


def in_class():
    class State:
        number = 1

    def region(x):
        State.number += 1  # changed
        return (x * State.number).exp()

    return made_by(region)


def counted():
    numbers = itertools.count(1)
    return made_by(lambda x: (x * next(numbers)).exp())


def evaluated():
    net = Evaluated()

    def change():
        net.eval()  # changed

    return made_by(net, change)


PROGRAMS = {
    "cache.pos": (lambda: made_by(Cached()), "0", "1"),
    "is_first": (lambda: made_by(Warm()), "True", "False"),
    "hidden": (lambda: made_by(Recurrent()), "a tensor", "another tensor"),
    "centre": (lambda: made_by(Centred()), "None", "a tensor"),
    "self.turns": (lambda: made_by(Slotted().region), "1", "2"),
    "self.place": (lambda: made_by(restarted()), "0", "1"),
    "tallies": (in_list, "0 long", "1 long"),
    "args[0]['gain']": (in_dict, "2", "3"),
    "table['gain']": (in_item, "2", "3"),
    "gain": (in_closure, "2", "3"),
    "settings.gain": (in_argument, "2.0", "3.0"),
    "config.gain_of_it": (in_namespace, "2", "3"),
    "State.number": (in_class, "1", "2"),
    "numbers": (counted, "a count(1)", "a count(2)"),
    "training": (evaluated, "True", "False"),
    "skipped": (stacked, "3 long", "2 long"),
    "is_engaged": (gated, "True", "False"),
    "depths_seen": (lambda: made_by(Logged()), "0 long", "1 long"),
}
LINES = (
    "cache.pos",
    "tallies",
    "is_first",
    "hidden",
    "centre",
    "self.turns",
    "self.place",
    "table['gain']",
    "training",
    "gain",
    "settings.gain",
    "config.gain_of_it",
    "State.number",
    "skipped",
    "is_engaged",
    "depths_seen",
)


@pytest.mark.parametrize("name", PROGRAMS)
@MODES
def test_the_value_that_differs_is_named(name, reentrant):
    make, was, now = PROGRAMS[name]
    heard, gradient = hear(lambda: make()(reentrant))
    (drift,) = heard.events
    first = drift.moved[0]
    assert (first.name, first.was, first.now) == (name, was, now)
    assert is_marked(drift.region, "region")
    assert heard.clobbers == []
    found = explain(drift)
    assert found.code == "NC205"
    assert f"`{name}`" in found.message
    assert f"is {now} " in found.message
    written = [label for label in found.labels if label.role == "write"]
    if name in LINES:
        (label,) = written
        assert label.source[0].endswith("# changed")
        assert label.primary
    else:
        assert written == []
    assert torch.equal(gradient, bare(lambda: make()(reentrant)))


class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset_of_it = 3

    def forward(self, x):
        return (x + (self.offset_of_it + 1)).exp()


@MODES
def test_an_error_of_the_second_run_is_explained_by_the_value(reentrant):
    net = Offset()
    program = made_by(net, lambda: setattr(net, "offset_of_it", None))
    with pytest.raises(TypeError) as raised, noclobber.watch() as watching:
        program(reentrant)
    (found,) = watching.findings
    assert found.code == "NC205"
    assert "raises TypeError" in found.message
    assert "`offset_of_it` is None, and was 3" in found.message
    assert "NoneType" in str(raised.value)


class Deeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth_of_it = 3

    def forward(self, x):
        for _ in range(self.depth_of_it):
            x = x.exp()
        return x


def test_another_number_of_saves_is_explained_by_the_value():
    net = Deeper()
    program = made_by(net, lambda: setattr(net, "depth_of_it", 1))
    with pytest.raises(torch.utils.checkpoint.CheckpointError), noclobber.watch() as watching:
        program(reentrant=False)
    (found,) = watching.findings
    assert "`depth_of_it` is 1, and was 3" in found.message


class Closing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("depth", torch.tensor(3))

    def forward(self, x):
        self.depth -= 1  # written
        for _ in range(int(self.depth)):
            x = x.exp()
        return x


class ReadTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        assert ctx.saved_tensors
        return grad * len(ctx.saved_tensors)


def test_another_number_of_saves_is_explained_by_the_write():
    with pytest.raises(torch.utils.checkpoint.CheckpointError), noclobber.watch() as watching:
        made_by(Closing())(reentrant=False)
    (found,) = watching.findings
    assert found.code == "NC205"
    assert "depth`, which a checkpointed region reads again" in found.message
    (label,) = (one for one in found.labels if one.role == "write")
    assert label.source[0].endswith("# written")


def test_an_error_that_comes_of_no_other_save_is_not_explained_by_a_write():
    net = Closing()
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match="already unpacked"), noclobber.watch() as watching:
        made_by(lambda x: ReadTwice.apply(x * net.depth.sub_(1).clone().fill_(2)))(reentrant=False)
    assert not watching.findings


class Logs(nn.Module):
    """Counts its calls and keeps its last result, and reads neither. What differs is a random number."""

    def __init__(self):
        super().__init__()
        self.calls_so_far = 0
        self.last_result = None

    def forward(self, x):
        self.calls_so_far += 1
        self.last_result = x.detach() * 2
        return (x * random.random()).exp()


@MODES
def test_what_the_region_only_notes_is_not_blamed(reentrant):
    random.seed(0)  # two numbers that are close would be taken for rounding
    heard, _ = hear(lambda: made_by(Logs())(reentrant))
    (drift,) = heard.events
    assert {one.name for one in drift.moved} == {"calls_so_far", "last_result"}
    assert "calls_so_far" not in explain(drift).message


@MODES
def test_a_write_between_the_runs_comes_before_a_value(reentrant):
    net, scale = Cached(), torch.ones(3)

    def change():
        scale.mul_(5)  # written

    heard, _ = hear(lambda: made_by(lambda x: net(x * scale), change)(reentrant))
    (drift,) = heard.events
    assert is_marked(drift.writes[0].site, "written")
    found = explain(drift)
    assert "`scale`" in found.message
    assert any("`net.cache.pos` was 0" in note for note in found.notes)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.pos, self.log = 0, 2, []

    def forward(self, x):
        self.calls += 1
        self.log.append(self.calls)
        return (x * self.pos).exp()


@MODES
def test_a_region_that_computes_the_same_is_quiet(reentrant):
    heard, gradient = hear(lambda: made_by(Counts())(reentrant))
    assert heard.events == heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: made_by(Counts())(reentrant)))


class Touchy:
    """An object whose own code must not run when its values are read."""

    def __init__(self):
        self.number = 1

    @property
    def costly(self):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError(name)

    def __len__(self):
        raise AssertionError

    def __iter__(self):
        raise AssertionError

    def __eq__(self, other):
        raise AssertionError

    def __hash__(self):
        raise AssertionError


class TouchyList(list):
    def __iter__(self):
        raise AssertionError

    __len__ = __eq__ = __iter__


@MODES
def test_no_code_of_the_program_runs_and_nothing_lives_longer(reentrant):
    touchy, several, holder = Touchy(), TouchyList([1, 2]), [nn.Linear(3, 3)]
    alive = weakref.ref(holder[0])

    def program():
        y = checkpoint(lambda x, _: (x * touchy.number + len(holder)).exp(), leaf(), several, use_reentrant=reentrant)
        holder.clear()
        assert alive() is None
        y.sum().backward()

    heard, _ = hear(program)
    (drift,) = heard.events
    assert [(one.name, one.was, one.now) for one in drift.moved] == [("holder", "1 long", "0 long")]
