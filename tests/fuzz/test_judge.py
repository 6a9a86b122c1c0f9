"""The judge can fail: faults that are put in on purpose are found, and the right gradient is right."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import noclobber
from noclobber.model.reports.report import Coverage, Lost
from tests.fuzz.judge import Outcome, changed_gradients, changed_saves, judge, right_gradients, run, wrong_gradient
from tests.fuzz.statements import FUNCTIONS, PRELUDE, function

HEAD = "\n".join([PRELUDE, *map(function, FUNCTIONS)]) + "\n"
END = "\nloss.backward()\ngrads[1] = gradients()\n"
SILENT = HEAD + "y = x.exp()\ny.data.mul_(2)\nloss = y.sum()" + END
RIGHT = HEAD + "y = x.exp()\nloss = y.sum()" + END
RAISES = HEAD + "y = x.exp()\ny.mul_(2)\nloss = y.sum()" + END


class Deaf(noclobber.watch):
    """Sees everything and says nothing."""

    @property
    def report(self):
        return noclobber.watch().report


class Accuser(noclobber.watch):
    """Accuses every program of what another one did."""

    @property
    def report(self):
        with contextlib.suppress(UserWarning), noclobber.watch() as other:
            y = torch.ones(2, requires_grad=True).exp()
            y.data.mul_(2)
            y.sum().backward()
        return other.report


class Broken(noclobber.watch):
    """Says that a part of it failed."""

    @property
    def report(self):
        lost = Lost("checkpoint regions", "KeyError: 'x'", internal=True)
        return replace(super().report, coverage=Coverage(lost=(lost,)))


def test_what_is_right_is_right():
    assert judge(RIGHT).outcome is Outcome.QUIET
    assert judge(SILENT).outcome is Outcome.SILENT
    assert judge(RAISES).outcome is Outcome.RAISED


def test_a_finding_that_is_withheld_is_an_escape():
    assert judge(SILENT, Deaf).outcome is Outcome.ESCAPE
    assert judge(RIGHT, Deaf).outcome is Outcome.QUIET


def test_a_finding_too_many_is_a_false_alarm():
    assert judge(RIGHT, Accuser).outcome is Outcome.FALSE_ALARM
    assert judge(SILENT, Accuser).outcome is Outcome.SILENT


def test_an_error_that_got_lost_is_an_escape():
    """Hooks switch PyTorch's version check off (torch 2.13)."""
    assert judge(RAISES, lambda: saved_tensors_hooks(lambda s: s, lambda s: s)).outcome is Outcome.ESCAPE


def test_another_error_is_a_change():
    def other_words(saved):
        raise RuntimeError("changed, somehow")

    assert judge(RAISES, lambda: saved_tensors_hooks(lambda s: s, other_words)).outcome is Outcome.WORDS
    assert judge(RIGHT, lambda: saved_tensors_hooks(lambda s: s, other_words)).outcome is Outcome.CHANGED


def test_a_last_bit_is_a_change():
    almost = saved_tensors_hooks(lambda s: s, lambda s: torch.nextafter(s, s + 1))
    assert judge(RIGHT, lambda: almost).outcome is Outcome.CHANGED


def test_a_failure_of_noclobber_is_a_fault():
    assert judge(RIGHT, Broken).outcome is Outcome.BROKEN


WRITES = {
    "data": "y = x.exp()\ny.data.mul_(2)\nloss = y.sum()",
    "assignment": "y = x * 1\nloss = (y ** 2).sum()\ny.data = torch.zeros_like(y)",
    "in place": "y = x.exp()\ny.mul_(2)\nloss = (y / 2).sum()",
    "numpy": "y = x.exp()\ny.detach().numpy().fill(0)\nloss = y.sum()",
    "storage": "y = x.exp()\ny.untyped_storage().fill_(0)\nloss = y.sum()",
    "stash": "y = x * 1\nloss = Stash.apply(y).sum()\ny.data.zero_()",
    "stash, twice": "y = x * 1\nz = Stash.apply(y)\ntorch.utils.swap_tensors(y, torch.ones_like(y))\n"
    "loss = torch.autograd.grad(z.sum(), [x], create_graph=True)[0].square().sum()",
    "checkpoint": "def f(h):\n    return (h * c).sum()\nloss = checkpoint(f, x, use_reentrant=False)\nc.add_(1)",
    "reentrant": "def f(h):\n    return h * c\nloss = checkpoint(f, x, use_reentrant=True).sum()\nc.add_(1)",
    "saved hooks": "with saved_tensors_hooks(lambda s: s, lambda s: s):\n    y = x.exp()\ny.add_(1)\nloss = y.sum()",
    "save_on_cpu": "with save_on_cpu():\n    y = x.exp()\ny.add_(1)\nloss = y.sum()",
    "hook": "y = x * 1\ny.register_hook(lambda g: g.mul_(0.5))\nloss = ((x * 1) + y).sum()",
    "grad write": "loss = ((x * 1) + Loud.apply(x * 1)).sum()",
    "backward": "y = x * 1\nloss = y.square().sum() + Scratch.apply(y).sum()",
}
TRUE = {
    "data": lambda x, c: x.exp(),
    "in place": lambda x, c: x.exp(),
    "assignment": lambda x, c: 2 * x,
    "numpy": lambda x, c: x.exp(),
    "storage": lambda x, c: x.exp(),
    "stash": lambda x, c: 2 * x,
    "stash, twice": lambda x, c: 8 * x,
    "checkpoint": lambda x, c: c,
    "reentrant": lambda x, c: c,
    "saved hooks": lambda x, c: x.exp(),
    "save_on_cpu": lambda x, c: x.exp(),
    "hook": lambda x, c: 1.5 + 0 * x,
    "grad write": lambda x, c: 3 + 0 * x,
    "backward": lambda x, c: 4 * x,
}


@pytest.mark.parametrize("way", WRITES)
def test_the_right_gradient(way):
    program = HEAD + WRITES[way] + END
    names = {}
    exec(HEAD, names)
    expected = TRUE[way](names["x"].detach(), names["c"])
    bare, right = run(program), right_gradients(program)
    torch.testing.assert_close(right.grads[1][0], expected)
    assert bare.error is not None or wrong_gradient(bare, right) == "grads[1][0]"


def test_a_reentrant_region_gives_no_gradient_where_its_argument_requires_none():
    region = HEAD + "def f(h):\n    return h * b\ny = c * 1\n"
    programs = {given: f"{region}loss = (checkpoint(f, {given}, use_reentrant=True) * x).sum()" + END for given in "xy"}
    assert {judge(program).outcome for program in programs.values()} == {Outcome.QUIET}
    assert right_gradients(programs["y"]).grads[1][2] is None
    assert right_gradients(programs["x"]).grads[1][2] is not None


def test_what_a_reentrant_region_returns_is_not_its_argument_itself():
    """Given other memory, the argument keeps its own; without a checkpoint it would not."""
    program = "def f(h):\n    return h\ny = checkpoint(f, b, use_reentrant=True)\n"
    program = HEAD + program + "y.data = torch.zeros_like(y)\nloss = (b * b).sum()" + END
    assert torch.equal(right_gradients(program).grads[1][2], run(program).grads[1][2])
    assert run(program).grads[1][2].count_nonzero()


def test_luck_is_told_from_harm():
    """A changed save is read, and what it is multiplied with is zero."""
    lucky = HEAD + "y = x.exp()\nloss = (y * 0).sum()\ny.data.mul_(2)" + END
    assert changed_saves(lucky)
    assert judge(lucky).outcome is Outcome.LUCKY
    region = "def f(h):\n    return (h + c).exp()\n"
    drift = HEAD + region + "loss = (checkpoint(f, x, use_reentrant=%s) * 0).sum()\nc.data.add_(1)" + END
    assert changed_saves(drift % False)
    assert changed_saves(drift % True)
    assert not changed_saves((drift % True).replace(".exp()", ""))
    assert not changed_saves(RIGHT)
    assert not changed_saves(HEAD + "y = F.batch_norm(x, mean, var, b, b, True)\nloss = y.sin().sum()" + END)


def test_a_reentrant_region_that_returns_something_else_and_saves_the_same_is_luck():
    """Nobody can tell what it would have saved in forward."""
    region = "def f(h):\n    return (h + c).max(-1)[0]\ny = checkpoint(f, x, use_reentrant=True)\n"
    assert judge(HEAD + region + "loss = y.sum()\nc.data[:, 0].add_(100)" + END).outcome is Outcome.SILENT
    assert judge(HEAD + region + "loss = y.sum()\nc.data.add_(1)" + END).outcome is Outcome.LUCKY


def test_a_reentrant_region_that_leads_elsewhere_under_a_gradient_of_nothing_is_luck():
    """What the region closes over was written from the graph since, and all of its rows are replaced in the region."""
    region = "def f(h):\n    return c.index_copy(0, idx, x)\ny = checkpoint(f, b, use_reentrant=True)\n"
    program = HEAD + region + "loss = y.square().sum()" + END
    joined = program.replace("loss =", "c.mul_(b.tanh())\nloss =")
    assert judge(joined).outcome is Outcome.LUCKY
    assert not changed_saves(program)
    assert not changed_saves(program.replace("c.index_copy(0, idx, x)", "h.exp() * x"))


def test_a_changed_stash_under_a_gradient_of_nothing_is_luck():
    """A reentrant region that does not use its argument leaves the gradient out, and a Function is given zeros."""
    program = "y = Stash.apply(x)\nx.data.add_(1)\nloss = checkpoint(lambda h: w * 2, y, use_reentrant=True).sum()"
    assert changed_saves(HEAD + program + END)


@pytest.mark.parametrize("hooks", ["saved_tensors_hooks(lambda s: s, lambda s: s)", "save_on_cpu()"])
def test_hooks_that_give_back_the_very_tensor_read_what_it_was_given_since(hooks):
    """`cdist` of equal rows hands on zeros."""
    program = f"with {hooks}:\n    y = w.sigmoid()\ny.data = torch.zeros_like(y)\nloss = torch.cdist(y, y + 2).sum()"
    assert changed_saves(HEAD + program + END)
    assert judge(HEAD + program + END).outcome is Outcome.LUCKY
    assert not changed_saves(HEAD + program.replace("w.sigmoid()", "w * 1") + END)


@pytest.mark.parametrize("which", ["b", "y"])
def test_backward_saves_an_input_again_and_reads_what_it_was_given_since(which):
    program = (
        f"y = b * 2\n(g,) = torch.autograd.grad(F.layer_norm(x, (4,), {which}).sum(), [x], create_graph=True)\n"
        f"{which}.data = {which}.data.relu()\nloss = (g * 0).sum()"
    )
    assert changed_saves(HEAD + program + END)
    assert not changed_saves(HEAD + program.replace("data.relu()", "data.clone()") + END)


def test_a_region_that_depends_on_itself_ends():
    program = "y = checkpoint(lambda h: h * t, x, use_reentrant=True)\nt.add_(y)\nloss = y.sum()"
    assert judge(HEAD + program + END).outcome is Outcome.REFUSED


def test_the_changed_memory_of_a_result_is_luck_where_the_tensor_was_given_other_memory():
    program = "y = x.exp()\nold = y.detach()\ny.data = y.data.clone()\nold.zero_()\nloss = (y * 0).sum()"
    assert changed_saves(HEAD + program + END)
    assert not changed_saves(HEAD + program.replace("x.exp()", "x * 1") + END)


def test_a_wrong_gradient_that_comes_to_nothing_is_luck():
    """The softmax of one element is constant, whatever gradient it is given."""
    program = "y = x.norm()\nz = y.softmax(-1)\nloss = Loud.apply(y * 2).sum() + z.sum()"
    assert changed_gradients(HEAD + program + END)
    assert judge(HEAD + program + END).outcome is Outcome.LUCKY
    assert not changed_gradients(HEAD + program.replace("Loud.apply(y * 2)", "(y * 2)") + END)
    assert not changed_gradients(RIGHT)
    assert changed_gradients(SILENT.replace("y = x.exp()", "q = x * 1\ny = q.exp()"))
