"""A right patch is proven, a wrong one is not. What is right is computed by the right program, or by hand."""

import shutil

import pytest
import torch

from noclobber.fix.proof.repairs import Level
from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.launcher import launching
from noclobber.mend.cures import candidates
from noclobber.observe.gradient_trace import evidence
from tests.fix import programs


def test_evidence_is_the_gradient_of_each_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(programs.STALE.replace("h += 1", "h = h + 1"))
    with launching(["program.py"]) as launcher:
        bare = launcher.run(Order("bare", 3, 3600, fresh=True))
        calls = [one for one in evidence.read(bare.evidence) if one["kind"] == "backward"]
    torch.manual_seed(0)
    w = torch.randn(3, dtype=torch.float32)
    assert len(calls) == bare.calls == 3
    for call in calls:
        s = torch.sigmoid(w)
        by_hand = 2 * (s + 1) * s * (1 - s)
        ((_, gradient, _),) = call["leaves"]
        assert torch.allclose(gradient, by_hand)
        w = w - 0.1 * by_hand


@pytest.mark.parametrize("end", ["raise KeyError('later')", "raise SystemExit(5)"])
def test_what_stops_the_program_later_with_and_without_the_patch_is_no_fault_of_the_patch(bench, end):
    """And it is told."""
    it = bench(programs.STALE.replace("range(4)", "range(2)") + end, backwards=3)
    right = it.judged(("h += 1", "h = h + 1"))
    assert right.right
    assert right.proof.startswith("2 backward calls compared, all gradients correct to the last bit; then the program ")
    assert right.proof.endswith(", but not because of an in-place write")
    assert "ends before them" not in right.proof
    assert it.judged(("h += 1", "h = h + 2")).differs
    assert it.judged(("print(w.tolist())", "print('other')"), ("h += 1", "h = h + 1")).differs
    assert "raises ValueError" in it.judged(("h += 1", "h = h + 1"), ("print(", "raise ValueError(")).why


def test_right_and_wrong_patches_of_a_stale_save(bench):
    it = bench(programs.STALE)
    assert it.finding.code == "NC101"
    right = it.judged(("h += 1", "h = h + 1"))
    assert right.right
    assert right.clean
    assert "3 backward calls compared, all gradients correct to the last bit" in right.proof
    assert it.judged(("h += 1", "h = h + 1"), mode="bare").right
    assert it.judged(("h += 1", "h = h.clone(); h += 1")).right

    assert it.judged(("h += 1", "pass")).differs
    assert it.judged(("h += 1", "h = h.detach() + 1")).why
    assert not it.judged(("h += 1", "h = h + 2")).right
    assert it.judged(("h += 1", "h = (h + 1) * 1.001")).differs
    assert "still there" in it.judged(("h += 1", "h.add_(1)")).why
    assert not it.judged(("h += 1", "h.data += 1")).right
    assert "NameError" in it.judged(("h += 1", "h = nothing + 1")).why
    assert not it.judged(("loss.backward()", "w.grad = torch.zeros(3)")).right
    assert it.path.read_text() == programs.STALE


def test_what_a_caller_sees_must_not_change(bench):
    it = bench(programs.SEEN)
    # the right gradient, with exp(w) kept: d/dw (exp(w) + 1)^2
    e = torch.exp(torch.ones(3))
    by_hand = 2 * (e + 1) * e
    hidden = it.judged(("t += 1", "t = t + 1"))
    assert not hidden.right
    assert "loss differs" in hidden.why
    shown = it.judged(("torch.exp(w)", "torch.exp(w).clone()"))
    assert shown.right
    ((_, gradient, _),) = evidence.read(shown.result.evidence)[0]["leaves"]
    assert torch.allclose(gradient, by_hand)


def test_a_state_carried_over_a_step_may_be_detached_and_the_step_not_left_out(bench):
    it = bench(programs.CARRIED)
    assert it.finding.code == "NC103"
    cut = it.judged(("cell(torch.randn(1, 2), state)", "cell(torch.randn(1, 2), state.detach())"))
    assert cut.right
    assert "gradients that reach back over an optimizer step are left out" in cut.proof
    assert not it.judged(("optimizer.step()", "pass")).right
    assert not it.judged(("state.sum().backward", "state.detach().requires_grad_().sum().backward")).right


def test_what_an_optimizer_steps_may_not_lose_its_gradient_to_a_detach(bench):
    text = (
        "import torch\n"
        "trunk = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))\n"
        "one, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)\n"
        "first = torch.optim.SGD([*trunk.parameters(), *one.parameters()], lr=0.1)\n"
        "last = torch.optim.SGD([*trunk.parameters(), *other.parameters()], lr=0.1)\n"
        "h = trunk(torch.randn(5, 3))\n"
        "a, b = one(h).square().mean(), other(h).square().mean()\n"
        "a.backward(retain_graph=True)\n"
        "first.step()\n"
        "last.zero_grad()\n"
        "b.backward()\n"
        "last.step()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC103"
    cut = it.judged(("other(h)", "other(h.detach())"))
    assert cut.why == "step 1 of SGD gets other gradients"
    copies = "{name: one.clone() for name, one in trunk.named_parameters()}"
    called = f"torch.func.functional_call(trunk, {copies}, (torch.randn(5, 3),))"
    assert it.judged(("trunk(torch.randn(5, 3))", called)).level is Level.PROVEN
    regular = text.replace("square().mean()\na", "square().mean() + trunk[0].weight.sum()\na")
    assert not bench(regular).judged(("other(h)", "other(h.detach())")).right


def test_a_step_that_waits_for_the_last_backward_is_looked_at_too(bench):
    """It gets what an earlier turn has left: the patch takes a part of that away."""
    it = bench(
        "import torch\n"
        "trunk = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))\n"
        "one, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)\n"
        "first = torch.optim.SGD([*trunk.parameters(), *one.parameters()], lr=0.1)\n"
        "last = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    h = trunk(torch.randn(5, 3))\n"
        "    one(h).square().mean().backward(retain_graph=True)\n"
        "    first.step()\n"
        "    other(h).square().mean().backward()\n"
        "    last.step()\n",
        backwards=4,
    )
    assert it.finding.code == "NC103"
    only = ("mean().backward()", "mean().backward(inputs=list(other.parameters()))")
    less = it.judged(("first.step()", "pass"), only, ("last.step()", "last.step(); first.step()"))
    assert less.why == "step 2 of SGD gets other gradients"


def test_a_refusal_has_nothing_to_compare_with_beyond_it(bench):
    it = bench(programs.LEAF)
    assert it.finding.code == "NC301"
    under = it.judged(("w -= 0.1 * w.grad", "w.data.sub_(0.1 * w.grad)"))
    assert under.right
    assert "later calls cannot be compared" in under.proof
    assert not it.judged(("(w * w).sum()", "(w * w * w).sum()")).right


def test_the_loss_is_compared_where_a_write_is_refused_before_any_backward(bench):
    text = "import torch\nw = torch.ones(3, requires_grad=True)\nw += 1\n(w * w).sum().backward()\n"
    it = bench(text)
    right = it.judged(("w += 1", "v = w + 1"), ("(w * w)", "(v * v)"))
    assert right.right
    assert "first loss equal to the last bit to what it is with gradients off" in right.proof
    assert it.judged(("w += 1", "w + 1")).differs


def test_a_gradient_is_compared_with_forward_mode_where_a_write_is_refused_before_any_backward(bench):
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "h = w * 2\n"
        "for one in h: one.mul_(3)\n"
        "(h * w).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC303"
    right = it.judged(("for one in h: one.mul_(3)", "h = h * 3"))
    assert right.level is Level.CHECKED
    assert "gradient agrees with forward mode along 1 random direction" in right.proof
    cut = it.judged(("for one in h: one.mul_(3)", "h = (h * 3).detach().requires_grad_()"))
    assert cut.why == "its gradient is not the one that forward mode gives without the patch"
    assert cut.differs


def test_compiled_code_that_cannot_be_traced_is_compared_with_forward_mode_of_what_it_stands_for(bench):
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "def loss(t):\n"
        "    h = torch.sigmoid(w * t)\n"
        "    h += 1\n"
        "    return (h * t).sum()\n"
        "torch.compile(loss, backend='aot_eager')(torch.ones(3) * 2).backward()\n"
    )
    it = bench(text)
    assert it.finding.primary.span.line == 5
    right = it.judged(("h += 1", "h = h + 1"))
    assert right.level is Level.CHECKED
    s = torch.sigmoid(torch.full((3,), 2.0))
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert torch.allclose(gradient, 4 * s * (1 - s))  # by hand: t * sigmoid'(w t) * t
    assert it.judged(("h += 1", "h = h.detach() + 1 + h * 0")).differs


def test_a_write_to_a_leaf_is_an_update_or_computed_with_as_the_patch_has_it(bench):
    it = bench("import torch\nw = torch.ones(3, requires_grad=True)\nw *= 2\n(w * w).sum().backward()\n")
    update = it.judged(("w *= 2", "w.data.mul_(2)"))
    assert update.level is Level.CHECKED
    assert "and its write to a leaf as an update" in update.proof
    computed = it.judged(("w *= 2", "v = w * 2"), ("(w * w)", "(v * v)"))
    assert computed.level is Level.CHECKED
    assert "as an update" not in computed.proof
    assert it.judged(("w *= 2", "v = w * 2"), ("(w * w)", "(v * v.detach())")).differs


def test_an_update_with_what_other_leaves_have_a_part_in_is_not_proven(bench):
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "v = torch.ones(3, requires_grad=True)\n"
        "w[0] = v[0] * 2\n"
        "(w * w).sum().backward()\n"
    )
    it = bench(text)
    update = it.judged(("w[0] = v[0] * 2", "w.data[0] = (v[0] * 2).detach()"))
    assert (update.right, update.level, update.comparable) == (True, Level.UNPROVEN, True)
    assert "depends on other leaves" in update.proof
    assert "gradients of its own" not in update.proof
    computed = it.judged(("w[0] = v[0] * 2", "h = w.clone(); h[0] = v[0] * 2"), ("(w * w)", "(h * h)"))
    assert computed.level is Level.CHECKED


def test_a_program_that_makes_gradients_of_its_own_is_checked_where_forward_mode_says_otherwise(bench):
    text = (
        "import torch\n"
        "class Round(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, a):\n"
        "        return a.round()\n"
        "    @staticmethod\n"
        "    def backward(ctx, gradient):\n"
        "        return gradient\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "w += 0.3\n"
        "Round.apply(w * 2).sum().backward()\n"
    )
    verdict = bench(text).judged(("w += 0.3", "v = w + 0.3"), ("w * 2", "v * 2"))
    assert verdict.right
    assert verdict.level is Level.UNPROVEN
    assert "gradients of its own" in verdict.proof


def test_what_a_hook_writes_is_compared_with_a_run_that_hands_out_clones(bench):
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "a, b = w * 2, w * 3\n"
        "b.register_hook(lambda gradient: gradient.mul_(5))\n"
        "((a + b) * torch.ones(3)).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC206"
    right = it.judged(("gradient.mul_(5)", "gradient * 5"))
    assert right.level is Level.PROVEN
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert gradient.tolist() == [17, 17, 17]  # by hand: 2 + 5 * 3
    assert it.judged(("gradient.mul_(5)", "gradient * 4")).differs
    assert it.judged(("b.register_hook(lambda gradient: gradient.mul_(5))", "pass")).differs


@pytest.mark.parametrize(
    ("register", "arguments", "shared"),
    [
        ("register_full_backward_pre_hook", "gradients", "f(h) + h"),
        ("register_full_backward_hook", "gradients, _", "f(h, h.detach() * w)"),
    ],
)
def test_what_a_hook_of_a_module_writes(bench, register, arguments, shared):
    text = (
        "import torch\n"
        "class Module(torch.nn.Module):\n"
        "    def forward(self, a, b=None):\n"
        "        return a * 1 if b is None else a + b\n"
        f"def halve(module, {arguments}):\n"
        "    gradients[0].mul_(0.5)\n"
        "f, w = Module(), torch.ones(3, requires_grad=True)\n"
        f"f.{register}(halve)\n"
        "h = w * 2\n"
        f"(({shared}) * torch.ones(3)).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC206"
    patch = candidates(it.finding, lambda path: text)[0]
    (edit,) = patch.edits
    assert edit.replacement == "return (gradients[0].mul(0.5), *gradients[1:])"
    right = it.judged(("gradients[0].mul_(0.5)", edit.replacement))
    assert right.level is Level.PROVEN, right.why
    ((_, found, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert found.tolist() == [3, 3, 3]  # by hand: 2 * (0.5 + 1), and 2 * 0.5 + 2
    assert it.judged(("gradients[0].mul_(0.5)", "pass")).differs


def test_gradients_that_are_all_zero_prove_nothing(bench):
    """What should have been detached is taken from itself: gradients cancel, in the program and with many a patch."""
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], 0.1)\n"
        "old = (w * w).sum()\n"
        "for _ in range(2):\n"
        "    loss = (w * w).sum() - old\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward(retain_graph=True)\n"
        "    optimizer.step()\n"
    )
    it = bench(text)
    judged = it.judged(("old = (w * w)", "old = (w.clone() * w.clone())"))
    assert not judged.right
    assert judged.why.startswith("every gradient of the program is zero")


def test_what_a_backward_writes_is_compared_with_a_run_that_hands_out_clones(bench):
    it = bench(programs.SILENT)
    assert it.finding.code == "NC206"
    right = it.judged(("gradient.div_(2)", "gradient / 2"))
    assert right.level is Level.PROVEN
    assert "where each gradient is handed out as a clone" in right.proof
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert gradient.tolist() == [4.5] * 3  # by hand: 3 * (1 + 1 / 2)
    assert not it.judged(("x / 2", "x / 4"), ("gradient.div_(2)", "gradient / 4")).right


def test_what_an_undeclared_write_does_to_a_save_is_compared_with_a_run_that_keeps_it(bench):
    it = bench(
        "import torch\n"
        '@torch.library.custom_op("proof::halve", mutates_args=())\n'
        "def halve(x: torch.Tensor) -> torch.Tensor:\n"
        "    x.numpy()[...] *= 0.5\n"
        "    return x.clone()\n"
        "halve.register_fake(lambda x: torch.empty_like(x))\n"
        "halve.register_autograd(lambda ctx, g: g * 0.5)\n"
        "w = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "q = w * 3\n"
        "penalty = q.pow(2).sum()\n"
        "(penalty + halve(q).sum()).backward()\n"
    )
    assert it.finding.code == "NC207"
    right = it.judged(("halve(q)", "halve(q.clone())"))
    assert right.level is Level.PROVEN
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert gradient.tolist() == [19.5, 37.5]  # by hand: 18 * w + 1.5
    assert it.judged(("halve(q)", "halve(q.clone() * 1.5)")).differs


@pytest.mark.parametrize(("derivative", "level"), [("3 * g", Level.CHECKED), ("2 * g", Level.UNPROVEN)])
def test_a_declared_write_is_compared_with_the_central_differences_of_the_patched_program(bench, derivative, level):
    it = bench(
        "import torch\n"
        "class Triple(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        x.mul_(3)\n"
        "        return x\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        f"        return {derivative}\n"
        "w = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "x = w * 2\n"
        "(Triple.apply(x).sin() + x).sum().backward()\n"
    )
    assert it.finding.code == "NC207"
    judged = it.judged(("x.mul_(3)", "ctx.mark_dirty(x.mul_(3))"))
    assert judged.right
    assert judged.level is level
    ((_, gradient, _),) = evidence.read(judged.result.evidence)[0]["leaves"]
    by_hand = 6 * (6 * torch.tensor([1.0, 2.0])).cos() + 6
    assert torch.allclose(gradient, by_hand) is (level is Level.CHECKED)


def test_what_an_activation_overwrote_is_compared_with_a_run_that_asks_for_what_was_there_before(bench):
    text = (
        "import torch\n"
        "w = torch.tensor([1.0, -1.0, 1.0], requires_grad=True)\n"
        "held = {'h': w * 2}\n"
        "net = torch.nn.Sequential(torch.nn.ReLU(inplace=True))\n"
        "loss = (net(held['h']) * 3).sum()\n"
        "torch.autograd.grad(loss, held['h'])\n"
    )
    it = bench(text)
    assert it.finding.code == "NC209"
    right = it.judged(("inplace=True", "inplace=False"))
    assert right.level is Level.PROVEN
    assert "with respect to the values from before the write" in right.proof
    (returned,) = evidence.read(right.result.evidence)[0]["returned"]
    assert returned.tolist() == [3, 0, 3]  # by hand: relu of 2, -2 and 2, times 3
    assert not it.judged(("inplace=True", "inplace=False"), ("w * 2", "w * 4")).right
    assert it.judged(("inplace=True", "inplace=False"), ("* 3", "* 3.01")).differs


def test_a_stale_cast_is_compared_with_a_run_whose_autocast_keeps_no_casts(bench):
    text = (
        "import torch\n"
        "w, x = torch.ones(1, 2, requires_grad=True), torch.ones(1, 2)\n"
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    for _ in range(2):\n"
        "        w.grad = None\n"
        "        torch.nn.functional.linear(x, w).float().square().sum().backward()\n"
        "        w.data.sub_(w.grad, alpha=0.125)\n"
    )
    it = bench(text)
    assert it.finding.code == "NC211"
    right = it.judged(("torch.bfloat16)", "torch.bfloat16, cache_enabled=False)"))
    assert right.level is Level.PROVEN
    assert "where autocast keeps no casts" in right.proof
    calls = [event for event in evidence.read(right.result.evidence) if event["kind"] == "backward"]
    gradients = [gradient.tolist() for call in calls[:2] for _, gradient, _ in call["leaves"]]
    assert gradients == [[[4, 4]], [[2, 2]]]  # by hand: 2 * (w @ x), where w is 1 and then 1 - 0.125 * 4
    assert it.judged(("0.125", "0")).differs


def test_a_step_before_a_region_runs_again_is_judged_as_one_before_a_backward(bench):
    text = (
        "import torch\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "d, g = torch.nn.Linear(3, 1), torch.nn.Linear(2, 3)\n"
        "opt = torch.optim.SGD(d.parameters(), lr=0.5)\n"
        "fake = g(torch.randn(4, 2))\n"
        "g_loss = checkpoint(lambda x: d(x).square(), fake, use_reentrant=False).mean()\n"
        "d_loss = d(fake.detach()).mean()\n"
        "d_loss.backward()\n"
        "opt.step()\n"
        "g_loss.backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC205"
    after = [("opt.step()", ""), ("g_loss.backward()", "g_loss.backward(inputs=list(g.parameters())); opt.step()")]
    right = it.judged(*after)
    assert right.level is Level.PROVEN, (right.why, right.proof)
    assert "gradients that reach back over an optimizer step are left out" in right.proof
    assert it.judged(("opt.step()", "")).level is not Level.PROVEN
    halved = it.judged(*after, ("d(x).square(), fake", "d(x).square(), 0.5 * fake + 0.5 * fake.detach()"))
    assert halved.level is not Level.PROVEN


def test_gradients_that_nothing_makes_right_are_not_compared(bench):
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "v = (w * 2)[:2]\n"
        "v.register_hook(lambda gradient: gradient * 5)\n"
        "v.mul_(3)\n"
        "v.sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC210"
    right = it.judged(("v.mul_(3)", "v = v.mul(3)"))
    assert right.right
    assert "gradients are not correct, so there is nothing to compare the patch with" in right.proof
    assert right.level is Level.UNPROVEN
    assert not it.judged(("v.mul_(3)", "v = v.mul(4)")).right


def test_a_region_that_reads_changed_bytes_is_compared_with_one_that_reads_its_old_ones(bench):
    text = (
        "import torch\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "scale, w = torch.full((3,), 2.0), torch.ones(3, requires_grad=True)\n"
        "loss = checkpoint(lambda t: (t * scale).pow(2), w, use_reentrant=False).sum()\n"
        "scale.mul_(3)\n"
        "loss.backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC205"
    right = it.judged(("lambda t: (t * scale).pow(2), w", "lambda t, s: (t * s).pow(2), w, scale.clone()"))
    assert (right.right, right.clean, right.level) == (True, True, Level.PROVEN)
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert gradient.tolist() == [8.0] * 3  # by hand: 2 * w * scale**2
    assert not it.judged(("t * scale)", "t * scale.clone())")).right


def test_a_region_that_draws_other_numbers_is_compared_with_one_that_runs_once(bench):
    text = (
        "import torch\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "torch.manual_seed(0)\n"
        "w = torch.ones(64, requires_grad=True)\n"
        "def region(t):\n"
        "    return torch.dropout(t, 0.5, True).sin()\n"
        "checkpoint(region, w, use_reentrant=False, preserve_rng_state=False).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC205"
    right = it.judged(("preserve_rng_state=False", "preserve_rng_state=True"))
    assert (right.right, right.clean, right.level) == (True, True, Level.PROVEN)
    assert not it.judged(("preserve_rng_state=False", "preserve_rng_state=True"), ("0.5, True", "0.4, True")).right


def test_a_write_to_what_a_function_returns_is_compared_with_a_write_to_a_clone(bench):
    text = (
        "import torch\n"
        "class Reverse(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x.view_as(x))\n"
        "    backward = staticmethod(lambda ctx, gradient: -gradient)\n"
        "w = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "h = w * 1\n"
        "y = Reverse.apply(h)\n"
        "y.mul_(3)\n"
        "(y + h).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC305"
    right = it.judged(("y.mul_(3)", "y = y.mul(3)"))
    assert (right.right, right.clean, right.level) == (True, True, Level.PROVEN)
    ((_, gradient, _),) = evidence.read(right.result.evidence)[0]["leaves"]
    assert gradient.tolist() == [-2.0, -2.0]  # by hand: 1 - 3
    assert it.judged(("Reverse.apply(h)", "h * 1")).differs


def test_a_program_that_is_not_deterministic_is_known(bench):
    """It asks the operating system."""
    seed = "import os; torch.manual_seed(int.from_bytes(os.urandom(7), 'big'))"
    it = bench(programs.STALE.replace("torch.manual_seed(0)", seed))
    assert it.judged(("h += 1", "h = h + 1")).differs
    assert it.prover.drift() == "backward call 1: the loss differs"
    assert bench(programs.STALE).prover.drift() == ""


def test_modules_and_data_files_are_found_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scale.txt").write_text("3")
    (tmp_path / "layers.py").write_text("def act(t):\n    t += 1\n    return t\n")
    (tmp_path / "program.py").write_text(
        "import pathlib, torch, layers\n"
        "scale = float(pathlib.Path(__file__).with_name('scale.txt').read_text())\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "(scale * layers.act(torch.exp(w))).sum().backward()\n"
    )
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    patch = programs.replaced(tmp_path / "layers.py", ("t += 1", "t = t * 5"))
    with launching(["program.py"]) as launcher:
        served = launcher.run(Order("bare", 3, 3600, served=patch.served))
        plain = launcher.run(Order("bare", 3, 3600))
        ((_, gradient, _),) = evidence.read(served.evidence)[0]["leaves"]
    assert "modified by an inplace operation" in plain.error
    assert torch.allclose(gradient, 15 * torch.exp(torch.ones(2)))
    assert (tmp_path / "layers.py").read_text() == "def act(t):\n    t += 1\n    return t\n"


def test_a_late_finding_is_met_and_every_call_before_it_counts(bench):
    text = programs.STALE.replace("range(4)", "range(40)").replace("for _ in", "for number in")
    text = text.replace(
        "    h += 1  # the write", "    if number < 9:\n        h = h + 1\n    else:\n        h += 1  # the write"
    )
    it = bench(text, backwards=2)
    assert (it.prover.search.found_at, it.prover.calls) == (10, 11)
    assert it.judged(("h += 1", "h = torch.add(h, 1)")).right
    early = it.judged(("h += 1", "h = torch.add(h, 1)"), ("h = h + 1", "h = h + 1 + 0.01 * (number == 4)"))
    assert early.differs
    assert "backward call 5" in early.why


def test_backward_calls_that_were_not_there_are_not_proven(bench):
    it = bench(programs.SEEN)
    twice = it.judged(("torch.exp(w)", "torch.exp(w).clone()"), ("print(", "(w * w).sum().backward(); print("))
    assert "more backward calls" in twice.why


MOVED = """\
import torch

torch.manual_seed(0)
net, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
for _ in range(3):
    loss = (net(torch.randn(4, 3)) - target(torch.randn(4, 3)).tanh()).pow(2).mean()
    loss = loss + (target.weight ** 2).sum()
    target.weight.data.mul_(0.5)  # the write
    loss.backward()
print(target.weight.tolist())
"""


def test_a_change_may_come_later_and_not_never(bench):
    it = bench(MOVED)
    assert it.finding.code == "NC201"
    write = "target.weight.data.mul_(0.5)"
    later = it.judged((write, "pass"), ("loss.backward()", f"loss.backward(); {write}"))
    assert later.right, later.why
    assert not it.judged((write, "pass")).right
    assert not it.judged((write, "pass"), ("loss.backward()", f"loss.backward(); {write}; {write}")).right


REFILLED = """\
import torch

torch.manual_seed(0)
net = torch.nn.Linear(2, 3)
x, y = torch.empty(4, 2), torch.empty(4, dtype=torch.long)
for _ in range(2):
    total = 0
    for _ in range(2):
        x.data.copy_(torch.randn(4, 2))
        y.data.copy_(torch.randint(0, 3, (4,)))
        total = total + torch.nn.functional.cross_entropy(net(x), y)
    total.backward()
"""


@pytest.mark.parametrize("end", ["", "    print(net.weight.grad.norm().item())\n"])
def test_a_part_is_right_though_another_silent_write_still_spoils_the_gradient(bench, end):
    it = bench(REFILLED + end)
    first, second = ("x.data.copy_(torch.randn(4, 2))", "x = torch.randn(4, 2)"), ("net(x), y)", "net(x), y.clone())")
    found = [it.judged(one) for one in (first, second)]
    assert sum(one.right and not one.clean for one in found) == 1  # the other one is not about the first finding
    assert it.judged(first, second).clean
    other = [
        it.judged(
            (
                before,
                after.replace("torch.randn(4, 2)", "torch.randn(4, 2) + 1").replace("y.clone()", "1 - y.clone() % 2"),
            )
        )
        for before, after in (first, second)
    ]
    assert not any(one.right for one in other)


ONCE = """\
import torch

torch.manual_seed(0)
net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)), torch.randn(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
loss = net(x).tanh().pow(2).sum()
for _ in range(3):
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("flag", "code"), [("", "NC104"), ("retain_graph=True", "NC103")])
def test_a_forward_that_runs_anew_is_compared_with_itself_and_its_first_loss_with_the_program_s(bench, flag, code):
    it = bench(ONCE.replace("backward()", f"backward({flag})"))
    assert it.finding.code == code
    right, begin = "net(x).tanh().pow(2).sum()", "for _ in range(3):"

    def inside(text):
        return it.judged((f"loss = {right}", ""), (begin, f"{begin}\n    loss = {text}"), way="anew")

    assert inside(right).clean
    assert "3 backward calls compared" in inside(right).proof
    assert "the first is that of the program as it is" in inside(right).proof
    assert "the loss differs" in inside(f"2 * {right}").why
    assert not inside("net(x).detach().requires_grad_().tanh().pow(2).sum()").right
    assert not inside("net(x).tanh().pow(2).sum(); net[1].weight.data.add_(1)").right


def test_newer_weights_are_checked_where_the_program_went_on_without_them(bench):
    it = bench(
        ONCE.replace("backward()", "backward(retain_graph=True)").replace(
            "opt.step()", "w = net[1].weight; w.data -= w.grad"
        )
    )
    assert it.finding.code == "NC201"
    loss = "loss = net(x).tanh().pow(2).sum()"
    moved = (loss, ""), ("for _ in range(3):", f"for _ in range(3):\n    {loss}")
    verdict = it.judged(*moved, way="anew")
    assert verdict.clean
    assert verdict.level is Level.UNPROVEN
    assert it.judged(*moved, way="anew", is_sound=True).level is Level.PROVEN


def test_a_step_below_the_loop_is_compared_with_the_losses_of_one_graph(bench):
    text = (
        "import torch\n"
        "torch.manual_seed(0)\n"
        "net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)), torch.randn(4, 3)\n"
        "opt = torch.optim.Adam(net.parameters(), 0.1)\n"
        "losses = net(x).pow(2).mean(1)\n"
        "for loss in losses:\n"
        "    loss.backward(retain_graph=True)\n"
        "    opt.step()\n"
        "print(sum(p.grad.abs().sum().item() for p in net.parameters()))\n"
    )
    it = bench(text)
    assert it.finding.code == "NC103"
    (change,) = [one for one in candidates(it.finding, lambda path: text) if one.way == "gathered"]
    moved = it.judged(("    opt.step()", "opt.step()"), way=change.way)
    assert moved.clean
    assert moved.level is Level.PROVEN
    assert not it.judged(("    opt.step()", "opt.step()"), ("pow(2)", "pow(3)"), way=change.way).right


SUMS = """\
import torch

torch.manual_seed(0)
net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)), torch.randn(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    first, second = net(x).pow(2).sum(0)
    opt.zero_grad()
    first.backward(retain_graph=True); opt.step(); opt.zero_grad()
    second.backward(); opt.step()
"""


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        ("SGD(net.parameters(), 0.1)", ""),
        (
            "SGD(net.parameters(), 0.1, momentum=0.5)",
            "step 1 of SGD leaves other parameters, or another state of its own",
        ),
        ("Adam(net.parameters(), 0.1)", "step 1 of Adam leaves other parameters, or another state of its own"),
    ],
)
def test_one_step_in_the_place_of_two_must_leave_what_both_left(bench, optimizer, why):
    it = bench(SUMS.replace("SGD(net.parameters(), 0.1)", optimizer))
    once = ("first.backward(retain_graph=True); opt.step(); opt.zero_grad()", "pass")
    verdict = it.judged(once, ("second.backward()", "(first + second).backward()"), way="summed")
    assert verdict.why == why
    assert (verdict.level is Level.PROVEN) is (not why)
    assert "one step does what two did" in verdict.proof or why


TWO_SAVES = """\
import torch

torch.manual_seed(0)
w = torch.randn(2, requires_grad=True)
x = torch.rand(3, 2).mul(1)
for t in range(1, 3):
    x[t] = torch.exp(w * x[t]) * x[t - 1]
x.sum().backward()
"""


def test_another_save_on_the_same_line_is_a_finding_of_its_own(bench):
    it = bench(TWO_SAVES)
    assert it.finding.code == "NC102"  # what `* x[t - 1]` keeps; NC101 is what `w * x[t]` keeps
    one = it.judged(("* x[t - 1]", "* x[t - 1].clone()"))
    assert (one.right, one.clean) == (True, False)
    assert "still there" in it.judged(("(w * x[t])", "(w * x[t].clone())")).why
    assert it.judged(("= torch.exp(w * x[t]) * x[t - 1]", "= torch.exp(w * x[t].clone()) * x[t - 1].clone()")).clean


def test_a_gradient_that_is_read_off_the_name_that_was_written_must_stay_there(bench):
    it = bench("import torch\nx = torch.ones(3).requires_grad_()\nx[0] = 2\n(x * x).sum().backward()\nprint(x.grad)\n")
    assert it.finding.code == "NC302"
    assert "gets None" in it.judged(("x[0] = 2", "x = x.clone(); x[0] = 2")).why
    assert it.judged(("x[0] = 2", "torch.no_grad().__enter__(); x[0] = 2; torch.set_grad_enabled(True)")).right
