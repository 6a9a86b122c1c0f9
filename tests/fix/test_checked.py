"""Where PyTorch refuses a write, a right patch is checked by the function that is computed, and a wrong one is not."""

import pytest
import torch

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.repairs import Level
from noclobber.mend.cures import candidates
from noclobber.mend.scene import as_it_ran
from tests.fix import programs

CENTRAL = "gradient agrees with central differences of its own loss along 3 random directions"

OUT = """\
import torch
net, out = torch.nn.Linear(3, 2), torch.empty(4, 2)
for _ in range(2):
    h = net(torch.randn(4, 3))
    torch.sigmoid(h, out=out)
    out.square().sum().backward()
"""
SLOPE = """\
import torch
net = torch.nn.Linear(3, 2)
h = net(torch.randn(4, 3))
torch.nn.functional.leaky_relu_(h, -0.2)
h.square().sum().backward()
"""
LENGTHS = """\
import torch
net = torch.nn.Linear(3, 5)
h = net(torch.randn(6, 1, 3))
with torch.no_grad(): blank = h[..., 0]
blank.sub_(1)
lengths = torch.tensor([6]), torch.tensor([2])
torch.nn.functional.ctc_loss(h.log_softmax(-1), torch.tensor([[1, 2]]), *lengths).backward()
"""
IMAGE = """\
import torch
theta = torch.tensor([[[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]], requires_grad=True)
with torch.inference_mode(): image = torch.rand(1, 1, 6, 6)
image.clamp_(0.1, 0.9)
grid = torch.nn.functional.affine_grid(theta, (1, 1, 6, 6), align_corners=False)
torch.nn.functional.grid_sample(image, grid, align_corners=False).square().sum().backward()
"""
LEAF = """\
import torch
prototypes = torch.nn.Parameter(torch.randn(5, 3))
prototypes[0] = 0.5
torch.cdist(torch.randn(4, 3), prototypes).square().sum().backward()
"""
METRIC = LEAF.replace(
    "prototypes[0]",
    "with torch.no_grad(): mean = prototypes * 2; mean += torch.ones(3, requires_grad=True)\nprototypes[0]",
)
PADDED = """\
import torch
table = torch.nn.Embedding(5, 3, padding_idx=0)
table.weight[1] = 0.5
torch.cdist(torch.randn(4, 3), table(torch.tensor([0, 1, 2]))).square().sum().backward()
"""
GIVEN = """\
import torch
points, w = torch.nn.Parameter(torch.randn(5, 3)), torch.ones(3, requires_grad=True)
points[0] = w * 2
torch.cdist(torch.randn(4, 3), points).square().sum().backward()
"""
SINGLE = """\
import numpy
import torch
x = torch.from_numpy(numpy.random.default_rng(0).normal(size=(4, 3)).astype(numpy.float32))
net, out = torch.nn.Linear(3, 2, dtype=torch.float32), torch.empty(4, 2, dtype=torch.float32)
torch.sigmoid(net(x), out=out)
out.square().sum().backward()
"""


ONCE = "torch.set_grad_enabled(False); {}; torch.set_grad_enabled(True)"


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (
            OUT,
            ("torch.sigmoid(h, out=out)", "out = torch.sigmoid(h)"),
            ("torch.sigmoid(h, out=out)", "out = torch.sigmoid(h.detach()) + 0 * h"),
        ),
        (
            SLOPE,
            ("torch.nn.functional.leaky_relu_(h", "h = torch.nn.functional.leaky_relu(h"),
            ("torch.nn.functional.leaky_relu_(h", "h = 0 * h + torch.nn.functional.leaky_relu(h.detach()"),
        ),
        (
            LENGTHS,
            ("blank.sub_(1)", "h = torch.cat([h[..., :1] - 1, h[..., 1:]], -1)"),
            ("blank.sub_(1)", "h = torch.cat([h[..., :1].detach() - 1, h[..., 1:]], -1)"),
        ),
        (
            IMAGE,
            ("image.clamp_(0.1, 0.9)", "image = image.clamp(0.1, 0.9)"),
            ("image.clamp_(0.1, 0.9)", "image = image.clamp(0.1, 0.9); theta = 0.5 * theta + 0.5 * theta.detach()"),
        ),
        (
            LEAF,
            ("prototypes[0] = 0.5", ONCE.format("prototypes[0] = 0.5")),
            ("prototypes[0] = 0.5", f"{ONCE.format('prototypes[0] = 0.5')}; prototypes.requires_grad_()[1:].detach_()"),
        ),
        (
            METRIC,
            ("prototypes[0] = 0.5", ONCE.format("prototypes[0] = 0.5")),
            ("prototypes[0] = 0.5", f"{ONCE.format('prototypes[0] = 0.5')}; prototypes.requires_grad_()[1:].detach_()"),
        ),
        (
            PADDED,
            ("table.weight[1] = 0.5", ONCE.format("table.weight[1] = 0.5")),
            ("table.weight[1] = 0.5", f"{ONCE.format('table.weight[1] = 0.5')}; table.padding_idx = None"),
        ),
        (
            GIVEN,
            ("points[0] = w * 2", "points = points.clone(); points[0] = w * 2"),
            ("points[0] = w * 2", ONCE.format("points[0] = w * 2")),
        ),
        (
            SINGLE,
            ("torch.sigmoid(net(x), out=out)", "out = torch.sigmoid(net(x))"),
            ("torch.sigmoid(net(x), out=out)", "out = torch.sigmoid(net(x).detach() * 0.5 + net(x) * 0.5)"),
        ),
    ],
)
def test_a_gradient_is_checked_by_differences_where_an_operator_has_none_by_forward_mode(bench, text, right, wrong):
    it = bench(text)
    checked = it.judged(right)
    assert checked.level is Level.CHECKED, (checked.why, checked.proof)
    if text is not IMAGE or torch.__version__ < "2.15":  # which has the derivative of grid_sample
        assert CENTRAL in checked.proof
    assert it.judged(wrong).level is not Level.CHECKED


def test_what_differs_from_run_to_run_is_not_checked(bench):
    it = bench(OUT.replace("torch.randn(4, 3)", "torch.randn(4, 3) + __import__('time').time() % 1"))
    assert it.judged(("torch.sigmoid(h, out=out)", "out = torch.sigmoid(h)")).level is Level.UNPROVEN


ADAPTED = """\
import torch
net = torch.nn.Linear(2, 1)
x, y = torch.randn(5, 2), torch.randn(5, 1)
fast = dict(net.named_parameters())
for _ in range(2):
    loss = (torch.func.functional_call(net, fast, (x,)) - y).square().mean()
    grad = torch.autograd.grad(loss, fast.values(), create_graph=True)[0]
    fast["weight"] -= 0.1 * grad
torch.func.functional_call(net, fast, (x,)).tanh().sum().backward()
"""


def test_a_loop_that_adapts_weights_is_checked_by_differences_of_the_patched_program_itself(bench):
    it = bench(ADAPTED)
    assert it.finding.code == "NC301"
    right = it.judged(('fast["weight"] -= 0.1 * grad', 'fast["weight"] = fast["weight"] - 0.1 * grad'))
    assert right.level is Level.CHECKED, (right.why, right.proof)
    assert f"gradient of backward call 3 agrees with {CENTRAL.partition('with ')[2]}, in float64" in right.proof
    for wrong in (
        'fast["weight"] = fast["weight"] - 0.1 * grad.detach()',
        'fast["weight"] = (fast["weight"] - 0.1 * grad).detach().requires_grad_()',
        'torch.no_grad().__enter__(); fast["weight"] -= 0.1 * grad; torch.set_grad_enabled(True)',
    ):
        judged = it.judged(('fast["weight"] -= 0.1 * grad', wrong))
        assert judged.level is Level.UNPROVEN, (wrong, judged.why, judged.proof)


MAPPED = """\
import torch
net = torch.nn.Linear(3, 2)
def one(row):
    out = torch.zeros(2)
    out[0] = row[0] * row[1]
    return out
torch.vmap(one)(net(torch.randn(4, 3))).sum().backward()
"""


def test_a_write_that_vmap_refuses_is_compared_with_a_loop(bench):
    it = bench(MAPPED)
    assert it.finding.code == "NC310"
    assert it.judged(("torch.zeros(2)", "row.new_zeros(2) * row")).level is Level.CHECKED
    assert not it.judged(("torch.zeros(2)", "row.new_ones(2) * row.detach()")).right


TRANSFORM = """\
import torch
from torch.func import grad, vmap
def one(x):
    row = torch.zeros(3)
    row[0] = x * x
    return row
def loss(w, x):
    return torch.tanh(vmap(one)(x) @ w).square().sum()
w, x = torch.randn(3), torch.randn(4)
{}print(grad(loss)(w, x).norm())
"""


MAPPED_GRADIENTS = """\
import torch
def loss(w, x):
    rows = torch.zeros(3)
    for k in range(3):
        rows[k] += torch.exp(-(x @ w - k) ** 2)
    return (rows**2).sum()
w = torch.randn(4)
print(torch.vmap(torch.func.grad(loss), (None, 0))(w, torch.randn(5, 4)).shape)
"""


def test_gradients_inside_vmap_are_compared_with_those_of_a_loop(bench):
    it = bench(MAPPED_GRADIENTS)
    assert it.finding.code == "NC310"
    right = it.judged(("torch.zeros(3)", "x.new_zeros(3)"))
    assert right.level is Level.CHECKED, (right.why, right.proof)
    assert "each gradient that torch.func takes, where `vmap` is a loop (5)" in right.proof
    wrong = it.judged(("torch.zeros(3)", "x.new_zeros(3)"), ("-(x @ w - k) ** 2", "-(x @ w.detach() - k) ** 2"))
    assert wrong.level is not Level.CHECKED, wrong.proof


@pytest.mark.parametrize("around", ["", "with torch.no_grad(): "])
def test_a_gradient_of_torch_func_is_the_same_with_gradients_off(bench, around):
    """`torch.func.grad` takes its gradient under `no_grad` too, so a run with gradients off has it as well."""
    it = bench(TRANSFORM.format(around))
    assert it.finding.code == "NC310"
    right = it.judged(("torch.zeros(3)", "x.new_zeros(3)"))
    assert right.level is Level.CHECKED, (right.why, right.proof)
    assert "each gradient that torch.func takes (1)" in right.proof
    assert not it.judged(("torch.zeros(3)", "x.new_ones(3)")).right
    for wrong in ("vmap(one)(x) @ w.detach()", "vmap(one)(x) @ (w + w - w.detach())"):
        detached = it.judged(("torch.zeros(3)", "x.new_zeros(3)"), ("vmap(one)(x) @ w", wrong))
        assert detached.level is not Level.CHECKED


def test_an_update_after_a_backward_call_is_compared_at_the_next_one(bench):
    it = bench(programs.LEAF)
    assert it.finding.code == "NC301"
    update = "w -= 0.1 * w.grad"
    right = it.judged((update, "w.data.sub_(0.1 * w.grad)"))
    assert right.level is Level.CHECKED
    assert right.proof.startswith(
        "1 backward call compared, all gradients correct to the last bit; next loss equal to "
    )
    assert it.judged((update, "pass")).why == "the next loss is different"
    assert it.judged((update, "w.data.sub_(0.2 * w.grad)")).differs


def test_an_update_may_depend_on_the_leaf_itself_and_on_no_other(bench):
    update = "w -= 0.1 * w.grad"
    decay = bench(programs.LEAF.replace(update, f"{update} + 0.1 * w"))
    guarded = f"with torch.no_grad(): {update} + 0.1 * w"
    right = decay.judged((f"{update} + 0.1 * w", guarded))
    assert right.level is Level.CHECKED, (right.why, right.proof)
    assert decay.judged((f"{update} + 0.1 * w", guarded.replace("0.1 * w.", "0.2 * w."))).differs


def test_gradients_that_autograd_grad_returns_are_checked_too(bench):
    """They arrive at no leaf; each leaf of the graph is asked for."""
    text = (
        "import torch\n"
        "w = torch.ones(3, requires_grad=True)\n"
        "for _ in range(2):\n"
        "    (g,) = torch.autograd.grad((w**3).sum(), (w,))\n"
        "    w -= 0.1 * g\n"
        "(w**2).sum().backward()\n"
    )
    it = bench(text)
    assert it.judged(("w -= 0.1 * g", "w.data.sub_(0.1 * g)")).level is Level.CHECKED
    assert it.judged(("w -= 0.1 * g", "w.data.sub_(0.2 * g)")).differs


def test_an_update_after_the_last_backward_call_is_compared_in_the_end(bench):
    it = bench(programs.LEAF.replace("range(3)", "range(1)").replace("print", "str"))
    update = "w -= 0.1 * w.grad"
    right = it.judged((update, "w.data.sub_(0.1 * w.grad)"))
    assert right.level is Level.CHECKED
    assert "what it keeps and prints in the end is what it is with gradients off" in right.proof
    assert it.judged((update, "pass")).why == "in the end `w` holds something else"


def test_a_detached_view_is_a_constant(bench):
    text = (
        "import torch\n"
        "net = torch.nn.Linear(3, 4)\n"
        "first, second = net(torch.randn(2, 3)).chunk(2, dim=1)\n"
        "first.detach_()\n"
        "(first * second).sum().backward()\n"
    )
    it = bench(text)
    assert it.finding.code == "NC399"
    assert it.judged(("first.detach_()", "first = first.detach()")).level is Level.CHECKED
    assert it.judged(("first.detach_()", "pass")).differs


def test_a_state_that_is_lost_before_a_refused_backward_is_seen(bench):
    text = (
        "import torch\n"
        "net, states = torch.nn.Linear(3, 3), {}\n"
        "states['v'] = torch.tanh(net(torch.randn(2, 3)))\n"
        "loss = states['v'].square().mean()\n"
        "parts = states['v'].chunk(3)\n"
        "for part in parts: part.zero_()\n"
        "loss.backward()\n"
    )
    it = bench(text)
    lost = it.judged(("part.zero_()", "part = torch.zeros_like(part)"))
    assert lost.why == "`states['v']` holds something else"


TWICE = """\
import torch
w = torch.ones(3, requires_grad=True)
w[0] = 0.5
for _ in range(3):
    (w * w).sum().backward()
    for p in [w]:
        p -= 0.1 * p.grad
    w.grad = None
"""


def test_a_write_that_is_refused_later_is_compared_beyond_it(bench):
    it = bench(TWICE)
    first, second = ("w[0] = 0.5", ONCE.format("w[0] = 0.5")), "p -= 0.1 * p.grad"
    before = programs.replaced(it.path, first)
    met = it.prover.start(before).result()
    assert (met.calls, met.findings[0].code) == (1, "NC301")
    it.prover.meet(met.findings[0], met.findings[:1], met, before)
    right = it.judged(first, (second, "p.data.sub_(0.1 * p.grad)"))
    assert right.level is Level.CHECKED
    assert "; then, with the patch so far, 1 backward call compared" in right.proof
    assert it.judged(first, (second, "p = p - 0.1 * p.grad")).why == "the next loss is different"


def test_a_program_without_a_backward_call_says_so(bench):
    it = bench("import torch\nx, y = torch.ones(3, requires_grad=True), torch.empty(3)\ntorch.add(x, 1, out=y)\n")
    verdict = it.judged(("torch.add(x, 1, out=y)", "y = torch.add(x, 1)"))
    assert verdict.level is Level.UNPROVEN
    assert "no backward call runs with the patch" in verdict.proof


@pytest.mark.parametrize(
    "frozen", ["net.requires_grad_(False)", "net.weight.requires_grad = net.bias.requires_grad = False"]
)
def test_what_is_frozen_after_it_was_built_has_no_part_in_the_derivative(bench, frozen):
    text = f"""\
import torch
tokens = torch.nn.Parameter(torch.randn(1, 2, 3))
net = torch.nn.Linear(3, 2)
{frozen}
prompt = tokens.expand(4, -1, -1)
prompt += torch.randn(4, 1, 3)
net(prompt).square().sum().backward()
"""
    it = bench(text)
    assert it.finding.code == "NC302"
    assert it.judged(("prompt += torch", "prompt = prompt + torch")).level is Level.CHECKED
    assert not it.judged(("prompt += torch", "prompt = prompt + 2 * torch")).right


@pytest.mark.parametrize("row", ["0", "torch.tensor([True, False, False, True])"])
def test_what_is_written_into_some_rows_of_an_expanded_leaf_is_not_checked(bench, row):
    """With gradients off the write changes all rows: such a run is no reference."""
    text = f"""\
import torch
start, last = torch.nn.Parameter(torch.randn(1, 3)), torch.nn.Linear(3, 3)
h = start.expand(4, -1)
h[{row}] = 0.0
last(h).square().mean().backward()
"""
    it = bench(text)
    assert it.finding.code == "NC302"
    for patch in (("h = start.expand(4, -1)", "h = start.clone().expand(4, -1)"), ("(4, -1)", "(4, -1).clone()")):
        assert it.judged(patch).level is Level.UNPROVEN


ATTACK = """\
import torch
net = torch.nn.Linear(3, 4)
def attack(x, y):
    x = x.clone().requires_grad_()
    for _ in range(2):
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), y), x)
        x += slope
        x.clamp_(0, 1)
    return x.detach()
for _ in range(2):
    x, y = torch.rand(8, 3), torch.randint(0, 4, (8,))
    x = attack(x, y)
    out = torch.nn.functional.linear(x, net.weight, net.bias)
    torch.nn.functional.cross_entropy(out, y).backward()
"""


def test_a_constant_that_gradients_of_the_same_weights_made_is_one_for_the_next_loss(bench):
    it = bench(ATTACK)
    assert it.finding.code == "NC301"
    under = (
        ("        x += slope", "        with torch.no_grad(): x += slope; x.clamp_(0, 1)"),
        ("        x.clamp_(0, 1)", "        pass"),
    )
    right = it.judged(*under)
    assert right.level is Level.CHECKED, (right.why, right.proof)
    assert "along 3 random directions of what comes after call 2, in float64" in right.proof
    wrong = it.judged(*under, ("net.weight,", "net.weight / 2 + net.weight.detach() / 2,"))
    assert wrong.level is not Level.CHECKED, wrong.proof


LATER = """\
import torch
w, delta = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
h = torch.tanh(w)
(slope,) = torch.autograd.grad(((h + delta) ** 2).sum(), delta, retain_graph=True)
rows, kept = [slope, h, h * h], torch.zeros(3, 3, requires_grad=True)
for t in range(3):
    kept[t] = rows[t]
(kept**2).sum().backward()
"""
CARRIED = """\
import torch
total, w = torch.nn.Parameter(torch.zeros(3)), torch.randn(3, 3, requires_grad=True)
u = torch.zeros(3)
for row in torch.randn(4, 3):
    total += u
    u = torch.tanh(row @ w + u)
(total**2).sum().backward()
"""


@pytest.mark.parametrize(("text", "write"), [(LATER, "    kept[t] = rows[t]"), (CARRIED, "    total += u")])
def test_a_value_that_carries_a_gradient_only_later_is_no_constant(bench, text, write):
    it = bench(text)
    assert it.judged((write, f"    with torch.no_grad(): {write.strip()}")).level is Level.UNPROVEN


CLIPPED = ATTACK.replace("x.clamp_(0, 1)", "clip_(x)") + "\n"
CLIPPED = CLIPPED.replace("def attack", "def clip_(t):\n    t.clamp_(0, 1)\ndef attack")
COLUMNS = """\
import torch
net = torch.nn.Linear(2, 1)
def model(both):
    t, x = both[:, 0], both[:, 1]
    t /= 2
    x /= 4
    return net(both).tanh()
both = torch.rand(6, 2, requires_grad=True)
(slope,) = torch.autograd.grad(model(both).sum(), both, create_graph=True)
slope.square().sum().backward()
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (CLIPPED, "        with torch.no_grad():\n            x += slope\n            clip_(x)\n"),
        (COLUMNS, "    both = both.clone()\n    t, x ="),
    ],
    ids=["a helper clips the leaf", "views of a leaf"],
)
def test_a_leaf_is_written_as_its_author_would(bench, text, lines):
    it = bench(text)
    patches = [Patch().edited(one.edits) for one in candidates(it.finding, as_it_ran)]
    (patch,) = (one for one in patches if lines in one.read(str(it.path)))
    assert it.judge(patch).level is Level.CHECKED
