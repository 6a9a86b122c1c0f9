"""Candidates where the step and the backward are in functions of their own, reordered where these are called."""

from __future__ import annotations

from noclobber.model.seen.events import Optimizer
from tests.fix.mending import mended

METHODS = """
    class Model:
        def __init__(self):
            self.g_opt = Adam(self.g.parameters())

        def backward_g(self):
            self.g_loss = self.criterion(self.fake)
            self.g_loss.backward()

        def optimize(self):
            self.backward_d()
            # the critic first
            self.d_opt.step()
            self.g_opt.zero_grad()
            self.backward_g()
            self.g_opt.step()
"""

FUNCTIONS = """
    def train_d(opt, loss):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()

    def train_g(g_opt, loss):
        g_opt.zero_grad()
        loss.backward()
        g_opt.step()

    for x in data:
        d_loss, g_loss = losses(x)
        train_d(d_opt, d_loss)
        train_g(g_opt, g_loss)
"""

AGENT = """
    class Network:
        def update(self, loss):
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    def learn(agent, s):
        q_loss, pi_loss = losses(agent, s)
        agent.critic.update(q_loss)
        agent.actor.update(pi_loss)
"""


def test_the_step_comes_after_the_call_that_goes_backward() -> None:
    seen = [Optimizer("self.g_opt", "self.g")]
    labels = {"write": "self.d_opt.step()", "read": "self.g_loss.backward()", "op": "Adam.step"}
    found = mended("NC103", METHODS, **labels, optimizers=seen)
    assert "        self.g_loss.backward(inputs=list(self.g.parameters()))\n" in found[0]
    calls = [line.strip() for line in found[0].split("\n")][9:]
    assert [one for one in calls if one.startswith("self.")] == [
        "self.backward_d()",
        "self.g_opt.zero_grad()",
        "self.backward_g()",
        "self.d_opt.step()",
        "self.g_opt.step()",
    ]


def test_the_step_of_a_function_is_made_by_its_caller_with_what_that_calls_the_optimizer() -> None:
    found = mended("NC103", FUNCTIONS, write="opt.step()", read="loss.backward()", op="Adam.step")
    assert found[0].endswith("    train_d(d_opt, d_loss)\n    train_g(g_opt, g_loss)\n    d_opt.step()\n")
    assert "    loss.backward(retain_graph=True)\n\n" in found[0]
    assert 'loss.backward(inputs=[p for group in g_opt.param_groups for p in group["params"]])' in found[0]


def test_calls_change_places_and_the_first_keeps_the_graph() -> None:
    found = mended("NC103", FUNCTIONS, write="opt.step()", read="loss.backward()", op="Adam.step")
    swapped = next(one for one in found if one.endswith("    train_g(g_opt, g_loss)\n    train_d(d_opt, d_loss)\n"))
    assert swapped.index("    loss.backward()\n") < swapped.index("    loss.backward(retain_graph=True)\n")


def test_two_calls_of_one_function_change_places() -> None:
    found = mended("NC103", AGENT, write="self.opt.step()", read="loss.backward()", op="Adam.step")
    assert any(one.endswith("    agent.actor.update(pi_loss)\n    agent.critic.update(q_loss)\n") for one in found)


def test_optimizers_of_a_list_step_in_a_loop_of_their_own() -> None:
    source = """
        for i in range(2):
            loss = losses(out, i)
            opts[i].zero_grad()
            loss.backward(retain_graph=True)
            opts[i].step()
    """
    found = mended("NC103", source, write="opts[i].step()", read="loss.backward(retain_graph=True)", op="SGD.step")
    assert any(one.endswith("retain_graph=True)\nfor i in range(2):\n    opts[i].step()\n") for one in found)
