"""Candidates for optimizers that step too early, for graphs that are carried along, and for writes nobody tracks."""

from __future__ import annotations

import pytest

from noclobber.model.reports.finding import Cause
from noclobber.model.seen.events import Carried, Optimizer
from tests.fix.mending import changes, mended

GAN = """
    for x in data:
        d_loss, g_loss = losses(gen, critic, x)
        d_opt.zero_grad()
        d_loss.backward(retain_graph=True)
        d_opt.step()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
"""


def test_the_step_comes_last_or_the_later_update_first() -> None:
    found = mended("NC103", GAN, write="d_opt.step()", read="g_loss.backward()", op="SGD.step")
    calls = [[line.strip() for line in one.split("\n")[2:8]] for one in found[:4]]
    inputs = 'inputs=[p for group in g_opt.param_groups for p in group["params"]]'
    assert calls[0][2:] == ["g_opt.zero_grad()", f"g_loss.backward({inputs})", "d_opt.step()", "g_opt.step()"]
    assert calls[1][2:] == ["g_opt.zero_grad()", "g_loss.backward()", "d_opt.step()", "g_opt.step()"]
    assert calls[2][:3] == ["g_opt.zero_grad()", "g_loss.backward(retain_graph=True)", "g_opt.step()"]
    assert calls[2][3:] == ["d_opt.zero_grad()", "d_loss.backward()", "d_opt.step()"]
    assert calls[3][1:5] == ["g_loss.backward()", "g_opt.step()", "d_opt.zero_grad()", calls[0][1]]


@pytest.mark.parametrize(
    "between",
    [
        "for p in critic.parameters():\n            p.data.clamp_(-0.5, 0.5)",
        "for e, p in zip(ema, critic.parameters()):\n            e *= 0.9",
        "scheduler.step()",
        "average.update(critic)",
        "scores.append(critic(held_out).mean().item())",
        "score = critic(held_out).mean().item()",
        "with torch.no_grad():\n            score = critic(held_out).mean()",
    ],
)
def test_no_step_moves_past_what_goes_by_the_weights(between: str) -> None:
    """It would clip, average or count before the step; the first steps need not show it."""
    source = GAN.replace("    g_opt.zero_grad()", f"    {between}\n        g_opt.zero_grad()")
    assert between in source
    found = mended("NC103", source, write="d_opt.step()", read="g_loss.backward()", op="SGD.step")
    assert all(one.index("d_opt.step()") < one.index(between.split("\n")[0]) for one in found)


@pytest.mark.parametrize(
    ("stepped", "called", "later"),
    [
        ("opt", "descend(losses[name], opts[name])", "for name in nets:\nopts[name].step()"),
        ("opt", "descend(losses[name], opts['a'])", None),  # each turn steps the same
        ("self.opt", "nets[name].descend(losses[name], name)", None),  # by no plain name
    ],
)
def test_a_function_that_steps_is_left_by_a_step_in_a_second_loop(stepped: str, called: str, later: str | None) -> None:
    source = f"""
def descend(loss, opt):
    grads = torch.autograd.grad(loss, opt.own, retain_graph=True)
    {stepped}.step()
    return grads
def run(nets, losses, opts):
    for name in nets:
        {called}
"""
    found = changes("NC103", source, write=f"{stepped}.step()", read="torch.autograd.grad", op="SGD.step")
    assert [one for one in found if "for name in nets" in one] == ([later] if later else [])


def test_a_step_moves_past_what_only_tells() -> None:
    told = "print(d_loss.item(), f'{float(g_loss):.3f}')\n        torch.nn.utils.clip_grad_norm_(gen.parameters(), 1.0)"
    source = GAN.replace("    g_opt.zero_grad()", f"    {told}\n        g_opt.zero_grad()")
    found = mended("NC103", source, write="d_opt.step()", read="g_loss.backward()", op="SGD.step")
    assert any(one.index("d_opt.step()") > one.index("g_loss.backward(") for one in found)


def test_the_parameters_of_an_optimizer_are_those_of_the_module_that_it_was_seen_to_step() -> None:
    source = """
        class Agent:
            def __init__(self, pi, q):
                self.pi_opt = Adam(self.pi.parameters(), 0.1)

            def update(self, q_loss, pi_loss):
                q_loss.backward(retain_graph=True)
                self.q_opt.step()
                pi_loss.backward()
                self.pi_opt.step()
    """
    labels = {"write": "self.q_opt.step()", "read": "pi_loss.backward()", "op": "Adam.step"}
    found = changes("NC103", source, **labels, optimizers=[Optimizer("self.pi_opt", "self.pi")])
    assert found[0] == "pi_loss.backward(inputs=list(self.pi.parameters()))"
    unseen = changes("NC103", source, **labels)
    assert unseen[0] == 'pi_loss.backward(inputs=[p for group in self.pi_opt.param_groups for p in group["params"]])'


def test_agents_step_in_a_loop_of_their_own() -> None:
    source = """
        def learn(agents, joint):
            for agent in agents:
                loss = agent.loss(joint)
                agent.opt.zero_grad()
                loss.backward(retain_graph=True)
                agent.opt.step()
    """
    labels = {"write": "agent.opt.step()", "read": "loss.backward(retain_graph=True)", "op": "SGD.step"}
    # Only the optimizer of the last turn was seen.
    found = mended("NC103", source, **labels, optimizers=[Optimizer("agent.opt", "agents[1].net")])
    assert found[0].split("\n")[1:8] == [
        "    for agent in agents:",
        "        agent.opt.zero_grad()",
        "    for agent in agents:",
        "        loss = agent.loss(joint)",
        "        loss.backward(retain_graph=True)",
        "    for agent in agents:",
        "        agent.opt.step()",
    ]
    own = 'inputs=[p for group in agent.opt.param_groups for p in group["params"]]'
    assert found[2].split("\n")[3:7] == [
        "        agent.opt.zero_grad()",
        f"        loss.backward(retain_graph=True, {own})",
        "    for agent in agents:",
        "        agent.opt.step()",
    ]


def test_what_reads_the_loss_of_a_turn_stays_in_its_loop() -> None:
    """In a loop of its own it would read the loss of the last turn each time."""
    source = """
        for agent in agents:
            loss = agent.loss(joint)
            loss.backward(retain_graph=True)
            agent.opt.step()
            history.append(loss.item())
    """
    labels = {"write": "agent.opt.step()", "read": "loss.backward(retain_graph=True)", "op": "SGD.step"}
    found = mended("NC103", source, **labels, optimizers=[Optimizer("agent.opt", "agents[1].net")])
    assert found[0].rstrip().split("\n")[1:] == [
        "    loss = agent.loss(joint)",
        "    loss.backward(retain_graph=True)",
        "    history.append(loss.item())",
        "for agent in agents:",
        "    agent.opt.step()",
    ]
    also = source.replace("agent.opt.step()", "agent.opt.step()\n            agent.plan.step()")
    found = mended("NC103", also, **labels)
    assert found[0].rstrip().split("\n")[4:] == [
        "for agent in agents:",
        "    agent.opt.step()",
        "    agent.plan.step()",
    ]
    for other in (
        source.replace("agent.opt.step()", "if loss > 0:\n                agent.opt.step()"),
        source.replace("loss.item()", "loss.item() + agent.net.weight.norm()"),
    ):
        assert not any("for agent in agents" in one.partition("history")[2] for one in mended("NC103", other, **labels))


STATES = [
    (Carried("state"), "state = state.detach()"),
    (Carried("state[0]", "tuple", whole="tuple"), "state = tuple(one.detach() for one in state)"),
    (Carried("net.h", "attribute"), "net.h = net.h.detach()"),
    (Carried("net.hs[1]", "item", whole="list"), "net.hs[:] = [one.detach() for one in net.hs]"),
    (
        Carried("net.hs['a']", "item", whole="dict"),
        "net.hs.update({key: one.detach() for key, one in net.hs.items()})",
    ),
]


@pytest.mark.parametrize(("state", "text"), STATES, ids=[one.name for one, _ in STATES])
def test_the_carried_state_is_detached_and_the_graph_no_longer_retained(state: Carried, text: str) -> None:
    source = """
        for x in chunks:
            y, state = net(x, state)
            opt.zero_grad()
            y.sum().backward(retain_graph=True)
            opt.step()
    """
    about = {"write": "opt.step()", "read": "y.sum().backward(retain_graph=True)", "op": "SGD.step"}
    found = changes("NC103", source, carried=[state], **about)
    assert found[0] == f"y.sum().backward()\n{text}"
    assert text in found
    assert not any("detach" in one for one in changes("NC103", source, **about))


def test_an_item_of_what_holds_more_than_tensors_and_a_variable_of_another_function_are_not_detached() -> None:
    source = """
        for x in chunks:
            net(x).sum().backward()
            opt.step()
    """
    for state in (Carried("net.hs[1]", "item"), Carried("inner.state", "attribute")):
        found = changes("NC104", source, read="net(x).sum().backward()", carried=[state])
        assert not any("detach" in one for one in found)


@pytest.mark.parametrize("opens", ["if (t + 1) % 4 == 0:", "try:"])
def test_a_state_is_detached_at_the_end_of_the_loop_or_of_the_block_of_the_backward(opens: str) -> None:
    source = f"""
        for t, x in enumerate(data):
            y, h = rnn(x, h)
            {opens}
                y.sum().backward()
                opt.step()
            {"except RuntimeError: pass" if opens == "try:" else "print(t)"}
    """
    found = mended("NC104", source, read="y.sum().backward()", save="rnn(x, h)", carried=[Carried("h")])
    ends = [one for one in found if "h = h.detach()" in one]
    assert any("        opt.step()\n        h = h.detach()\n" in one for one in ends)


def test_the_first_of_two_backwards_keeps_the_graph() -> None:
    source = """
        a.backward()
        b.backward()
    """
    assert changes("NC104", source, read="b.backward()")[0] == "a.backward(retain_graph=True)"


def test_a_function_that_has_stepped_returns_values_detached() -> None:
    source = """
        def critic(self, value, goal):
            td = goal - value
            td.pow(2).mean().backward(retain_graph=True)
            self.opt.step()
            return td

        def actor(logp, td):
            (logp * td).mean().backward()
    """
    found = changes("NC103", source, write="self.opt.step()", read="(logp * td).mean().backward()", op="SGD.step")
    assert found[0] == "return td.detach()"


def test_a_write_under_no_grad_moves_out_of_it() -> None:
    source = """
        def drop(h, keep):
            with torch.no_grad():
                n = keep.sum()
                h.mul_(keep)
            return h
    """
    assert mended("NC208", source, write="h.mul_(keep)")[0].split("\n")[1:4] == [
        "    n = keep.sum()",
        "    h = h * keep",
        "    return h",
    ]


def test_a_generated_weight_goes_into_a_functional_call() -> None:
    source = """
        def run(conv, x):
            conv.weight.data = make(x)
            return conv(x)
    """
    first = mended("NC208", source, write="conv.weight.data")[0]
    assert "    weight = make(x)\n" in first
    assert '    return torch.func.functional_call(conv, {"weight": weight}, (x,))\n' in first


def test_an_inner_step_makes_new_weights() -> None:
    source = """
        def adapted(params, grads, lr):
            for p, g in zip(params{values}, grads):
                p.data -= lr * g
            return params
    """
    of_dict = mended("NC208", source.replace("{values}", ".values()"), write="p.data")
    assert "    params = {name: p - lr * g for (name, p), g in zip(params.items(), grads)}\n" in of_dict[0]
    of_list = mended("NC208", source.replace("{values}", ""), write="p.data")
    assert "    params = [p - lr * g for p, g in zip(params, grads)]\n" in of_list[0]


def test_a_write_through_data_becomes_one_that_autograd_sees() -> None:
    source = """
        def fit(delta, budget):
            for i, b in enumerate(budget):
                delta.data[i] *= b
            return delta
    """
    first = mended("NC201", source, write="delta.data[i] *= b", op="aten::mul_")[0]
    lines = [
        "    delta = delta.clone()",
        "    for i, b in enumerate(budget):",
        "        delta[i] *= b",
        "    return delta",
    ]
    assert first.split("\n")[1:5] == lines


@pytest.mark.parametrize("loop", ["for x in xs", "while xs"])
def test_a_write_through_data_is_seen_by_the_next_turn_of_its_loop(loop: str) -> None:
    source = f"""
        def roll(policy, xs, done):
            h = start(xs)
            {loop}:
                h = policy(x, h)
                h.data[done] = 0.0
            return loss
    """
    first = mended("NC201", source, write="h.data[done] = 0.0", save="policy(x, h)", op="aten::fill_")[0]
    assert first.split("\n")[3:6] == ["        h = policy(x, h)", "        h = h.clone()", "        h[done] = 0.0"]


def test_a_write_through_data_that_nothing_reads_is_not_made_one_that_autograd_sees() -> None:
    source = """
        def roll(policy, xs, done):
            for x in xs:
                policy(x).data[done] = 0.0
                h.data[done] = 0.0
    """
    found = mended("NC201", source, write="h.data[done] = 0.0", op="aten::fill_")
    assert not any(" h[done] = 0.0" in one for one in found)


def test_a_change_of_weights_is_put_off_until_after_the_backward() -> None:
    source = """
        def clip(net):
            for p in net.parameters():
                p.data.clamp_(-1, 1)

        def train(critic, x):
            loss = critic(x)
            clip(critic)
            loss.backward()
    """
    about = {"kind": "parameter", "op": "aten::clamp_"}
    found = mended("NC201", source, write="p.data.clamp_(-1, 1)", read="loss.backward()", **about)
    assert "    loss = critic(x)\n    loss.backward()\n    clip(critic)\n" in found[0]


NOT_READ = [
    "loss = y.mean()",
    "loss = y.mean()\n            print(loss.item())",
    "loss = y.mean() + 0.1 * torch.log(z).sum()\n            self.opt.zero_grad(set_to_none=True)",
    "loss = y.mean()\n            seen.append(loss.item())",
    "loss = y.mean()\n            if loss.item() > 1:\n                print(loss)",
    "(y.mean() + z.mean()).backward(retain_graph=True)",
]
MAYBE_READ = [
    "loss = h.log().mean()",
    "loss = g.sum()",
    "loss = v.sum()",
    "loss = row.sum()",
    "loss = held[0].sum()",
    "loss = self.state.sum()",
    "loss = self.loss()",
    "loss = criterion(y)",
    "loss = given.sum()",
    "loss = kept.sum()",
    "loss = y.mean()\n            self.log(loss)",
    "loss = sum(one.sum() for one in held)",
    "with torch.no_grad():\n                loss = net(x)",
    "x = next(batches)",
]


@pytest.mark.parametrize(
    ("between", "moves"), [*((one, True) for one in NOT_READ), *((one, False) for one in MAYBE_READ)]
)
def test_a_write_is_put_off_only_if_nothing_in_between_reads_it(between: str, moves: bool) -> None:
    """The write may change no byte in the runs that are compared, and some in a later one."""
    source = f"""
        def train(self, x, given):
            h = softmax(x)
            g = h
            v = h.view(-1)
            (row, *rest), held, self.state = h, [h], h
            seen = []
            y = h * 2
            z = h.exp()
            kept = h * 3
            self.kept = kept
            h[h < 0.1] = 0.1 * x.mean()
            {between}
            loss.backward()
    """
    write, read, op = "h[h < 0.1] = 0.1 * x.mean()", "loss.backward()", "aten::index_put_"
    found = mended("NC101", source, write=write, save="softmax(x)", read=read, op=op)
    assert any(f"    loss.backward()\n    {write}\n" in one for one in found) == moves


def test_a_write_is_put_off_until_after_the_last_backward() -> None:
    source = """
        def train(critic, opt, x):
            a, b = critic(x).mean(), critic(-x).mean()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-1, 1)
            a.backward(retain_graph=True)
            b.backward()
            opt.step()
            c.backward()
    """
    about = {"kind": "parameter", "op": "aten::clamp_", "write": "p.clamp_(-1, 1)"}
    found = mended("NC101", source, read="a.backward(retain_graph=True)", **about)
    assert "    b.backward()\n    with torch.no_grad():\n        for p in" in found[0]
    assert found[0].endswith("            p.clamp_(-1, 1)\n    opt.step()\n    c.backward()\n")


@pytest.mark.parametrize("write", ["w.data -= 0.1 * w.grad", "return w.data.mul_(2)", "w.data.mul_(loss)"])
def test_a_write_that_depends_on_what_comes_between_stays(write: str) -> None:
    source = f"""
        def train(w, x):
            first = (w * x).sum()
            second = (w ** 2).sum()
            {write}
            loss = first + second
            loss.backward()
    """
    found = mended("NC201", source, write=write.removeprefix("return "), read="loss.backward()", kind="parameter")
    assert not any(one.index("loss.backward()") < one.index("w.data") for one in found)


def test_a_decorator_is_no_place_of_a_change() -> None:
    source = """
        @torch.compile
        def f(x):
            return torch.sigmoid(x)

        h = f(x)
        h += 1
        h.sum().backward()
    """
    found = mended("NC101", source, write="h += 1", save="@torch.compile", read="h.sum().backward()", op="aten::add_")
    assert any("h = h + 1\n" in one for one in found)


def test_what_a_later_loss_takes_from_an_earlier_one_is_detached() -> None:
    source = """
        def update(self, s, r):
            adv = r - self.critic(s)
            c_loss = adv.pow(2).mean()
            c_loss.backward(retain_graph=True)
            self.c_opt.step()
            a_loss = -(self.actor(s) * adv).mean()
            a_loss.backward()
            self.a_opt.step()
    """
    found = changes("NC103", source, write="self.c_opt.step()", read="a_loss.backward()", op="SGD.step")
    assert found[0] == "a_loss = -(self.actor(s) * adv.detach()).mean()"


def test_a_graph_of_before_the_last_step_is_not_kept_alive_by_copies_of_its_weights() -> None:
    source = """
        old = net(x)
        for x in data:
            loss = (net(x) - old).sum()
            loss.backward(retain_graph=True)
            opt.step()
    """
    about = {"save": "net(x)", "op": "SGD.step", "kind": "parameter"}
    found = mended("NC103", source, write="opt.step()", read="loss.backward(retain_graph=True)", **about)
    assert not any("functional_call" in one for one in found)
    other = source.replace("opt.step()", "").replace("for x", "opt.step()\n        for x")
    found = mended("NC103", other, write="opt.step()", read="loss.backward(retain_graph=True)", **about)
    assert any("functional_call" in one for one in found)


def test_a_checkpointed_region_gets_a_copy_of_what_it_closed_over() -> None:
    source = """
        y = checkpoint(lambda t: torch.tanh(t * scale), x, use_reentrant=False)
        scale.mul_(2)
        y.sum().backward()
    """
    found = mended("NC205", source, write="scale.mul_(2)", read="y.sum().backward()")
    assert found[0].endswith("y.sum().backward()\nscale.mul_(2)\n")
    assert "checkpoint(lambda t, scale: torch.tanh(t * scale), x, scale.clone(), use_reentrant=False)" in found[1]


def test_a_checkpointed_method_gets_a_copy_of_what_it_read_from_its_object() -> None:
    source = """
        class Stack:
            def run(self, block, h):
                return h + self.scale * block(h)

            def forward(self, h):
                for i, block in enumerate(self.blocks):
                    self.scale.fill_(1 / (i + 1))
                    h = checkpoint(self.run, block, h, use_reentrant=False)
                return h
    """
    about = {"write": "self.scale.fill_(1 / (i + 1))", "save": "self.scale * block(h)", "op": "aten::fill_"}
    found = mended("NC205", source, **about)
    copied = next(one for one in found if "self.scale.clone()" in one)
    assert "    def run(self, block, h, scale):\n        return h + scale * block(h)\n" in copied
    assert "checkpoint(self.run, block, h, self.scale.clone(), use_reentrant=False)" in copied
    assert not any("self.scale.clone() *" in one for one in found)  # which would be taken anew in backward
    taken = source.replace("self.run, block", "self.run, net.run, block")
    assert not any("scale):" in one for one in mended("NC205", taken, **about))


def test_a_checkpointed_method_of_another_object_gets_a_copy_of_what_that_holds() -> None:
    source = """
        class Memory:
            def read(self, x):
                return torch.tanh(x @ self.bank)

        y = checkpoint(memory.read, x, use_reentrant=False)
        memory.bank.mul_(2)
        y.sum().backward()
    """
    found = mended("NC205", source, write="memory.bank.mul_(2)", save="checkpoint(memory.read, x, use_reentrant=False)")
    copied = next(one for one in found if "def read(self, x, bank)" in one)
    assert "torch.tanh(x @ bank)" in copied
    assert "checkpoint(memory.read, x, memory.bank.clone(), use_reentrant=False)" in copied


def test_a_checkpointed_partial_is_given_a_clone_of_what_is_written() -> None:
    source = """
        y = checkpoint(partial(layer, w, keep=keep), x, use_reentrant=False)
        keep.mul_(2)
        y.sum().backward()
    """
    save = "checkpoint(partial(layer, w, keep=keep), x, use_reentrant=False)"
    found = mended("NC205", source, write="keep.mul_(2)", save=save)
    assert any("partial(layer, w, keep=keep.clone()), x" in one for one in found)
    assert not any("w.clone()" in one or "layer.clone()" in one for one in found)


def test_a_checkpointed_region_gets_a_clone_of_the_argument_that_is_written() -> None:
    source = """
        y = checkpoint(net, scale, x, use_reentrant=False)
        x.add_(1)
        y.sum().backward()
    """
    found = mended("NC205", source, write="x.add_(1)", save="checkpoint(net, scale, x, use_reentrant=False)")
    assert any("checkpoint(net, scale, x.clone(), use_reentrant=False)" in one for one in found)
    assert not any("net.clone()" in one or "scale.clone()" in one for one in found)


@pytest.mark.parametrize(
    ("call", "name", "right"),
    [
        ("net, x", "net.noise", 'net, {"noise": net.noise.clone()}, (x,)'),
        ("self.net, x, y", "model.net.bn.mean", 'self.net, {"bn.mean": self.net.bn.mean.clone()}, (x, y)'),
        ("net, x", "model.blocks.0.noise", "net, {name: one.clone() for name, one in net.named_buffers()}, (x,)"),
    ],
)
def test_a_checkpointed_module_runs_on_a_copy_of_the_buffer_that_is_written(call: str, name: str, right: str) -> None:
    source = f"y = checkpoint({call}, use_reentrant=False)\nblock.noise.normal_()\ny.sum().backward()\n"
    about = {"write": "block.noise.normal_()", "save": f"checkpoint({call}, use_reentrant=False)"}
    found = mended("NC205", source, **about, kind="buffer", name=name, op="aten::normal_")
    assert any(f"checkpoint(torch.func.functional_call, {right}, use_reentrant=False)" in one for one in found)


def test_a_state_that_is_kept_in_place_is_detached_before_and_no_graph_is_kept_for_it() -> None:
    source = """
        for x in data:
            self.centre.mul_(0.9).add_(x.mean(0))
            loss(x - self.centre).backward()
    """
    places = {"write": "self.centre.mul_(0.9)", "read": "loss(x - self.centre).backward()"}
    found = changes("NC104", source, cause=Cause.CARRIED, **places)
    assert found[0] == "self.centre = self.centre.detach()"
    assert not any("retain_graph" in one for one in found)
    shared = changes("NC104", source, cause=Cause.SHARED, **places)
    assert "loss(x - self.centre).backward(retain_graph=True)" in shared
