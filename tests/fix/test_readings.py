"""What is meant by a write outside of autograd is asked, and nothing that harms is shown, proven or written."""

import subprocess
import sys

import pytest
import torch

from noclobber.fix import verb
from noclobber.fix.proof.trials import launcher
from noclobber.settings.selection import Selection
from tests import served

STRAIGHT_THROUGH = """\
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
for _ in range(3):
    h = net(torch.randn(2, 4))
    h.data.copy_(h.data.round())
    h.pow(2).sum().backward()
"""
ADAPTED = """\
import torch

net = torch.nn.Linear(3, 1)
x = torch.randn(5, 3)
grads = torch.autograd.grad(net(x).pow(2).mean(), list(net.parameters()), create_graph=True)
for p, g in zip(net.parameters(), grads):
    p.data -= 0.1 * g
net(x).pow(2).mean().backward()
"""

IMITATED = """\
import torch

torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
seen, gain = torch.randn(6, 4), torch.randn(6)


def chosen():
    return policy(seen).log_softmax(1)[:, 0]


def played():
    return seen, chosen()


def update():
    _, before = played()
    for _ in range(3):
        loss = -((chosen() - before).exp() * gain).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()


update()
"""


CENTRED = """\
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
h = net(torch.randn(5, 4))
h.data.sub_(h.data.mean(0))
(h * torch.arange(1.0, 4.0)).sum().backward()
"""


@pytest.fixture
def fixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "_spawned", served.spawned)

    def fix(text, *, writing=False):
        (tmp_path / "program.py").write_text(text)
        done = verb.fix(
            ["program.py"], Selection(), writing=writing, unproven=False, backwards=3, seconds=3600, tell=lambda _: None
        )
        return done, (tmp_path / "program.py").read_text()

    return fix


def test_what_is_part_of_the_function_is_read_where_autograd_sees_it(fixed):
    """The derivative of the mean counts too: the sum of centred values has no gradient."""
    done, left = fixed(CENTRED, writing=True)
    said = "\n".join(done.words)
    assert left == CENTRED
    assert "h = h - h.mean(0)" in said
    assert "h.data.mean" not in "".join(line for line in done.words if line.lstrip().startswith("+"))
    seen = next(line for line in done.words if "let autograd see it: write out of place" in line)
    assert "`net.weight` 0," in seen


def test_a_straight_through_estimator_is_asked_about_and_never_mended(fixed):
    """Its gradient passes; where the write is part of the function, rounding gives none."""
    done, left = fixed(STRAIGHT_THROUGH, writing=True)
    said = "\n".join(done.words)
    assert (done.status, done.diff, left) == (0, "", STRAIGHT_THROUGH)  # it is a warning
    assert "only the author can say what is meant" in said
    passes, through = (
        line.rpartition(": ")[2] for line in done.words if line.startswith(("    as it is", "    if the gr"))
    )
    assert passes == through
    assert "`net.weight` 0," not in passes
    assert "h = h + (h.round() - h).detach()" in said
    of_the_function = [line for line in done.words if line.startswith("    if the write is part of the function")]
    assert of_the_function
    assert all("`net.weight` 0, `net.bias` 0" in line for line in of_the_function)
    assert "nothing left" not in said


@pytest.mark.parametrize("retained", ["retain_graph=True", ""])
def test_what_may_be_a_constant_in_a_loop_is_asked_about(fixed, retained):
    """A ratio to what the policy gave itself has no gradient in the first turn, unless that is a constant."""
    text = IMITATED.replace("retain_graph=True", retained)
    done, left = fixed(text, writing=True)
    assert (done.diff, left) == ("", text)
    as_it_is, constant = [line for line in done.words if "`policy.2.weight`" in line and "changes" not in line]
    assert "as it is: `policy.2.weight` 0, `policy.0.weight` 0" in as_it_is
    assert "detach `before` before the loop: `policy.2.weight` 0." in constant
    assert "      +    before = before.detach()" in done.words
    again, _ = fixed(text.replace("    for _", "    before = before.detach()\n    for _"))
    assert again.words == ["noclobber: nothing to fix: no write broke a gradient (3 backward calls)"]


@pytest.mark.parametrize("end", ["raise KeyError('later')", "raise SystemExit(5)"])
def test_what_stops_the_program_later_takes_no_meaning_away(fixed, end):
    done, _ = fixed(STRAIGHT_THROUGH.replace("range(3)", "range(1)") + end)
    assert "h = h + (h.round() - h).detach()" in "\n".join(done.words)


def test_the_name_of_a_loop_is_not_bound_anew(fixed):
    """That would adapt nothing."""
    done, _ = fixed(ADAPTED)
    assert done.status == 0
    assert "as it is: `net.weight`" in "\n".join(done.words)
    assert not [line for line in done.words if line.startswith("      +")]


ROUTER = """\
import torch
from torch import nn

router, head = nn.Linear(4, 4), nn.Linear(4, 1)
for _ in range(3):
    x = torch.randn(5, 4)
    p = router(x).softmax(-1)
    with torch.no_grad():
        p.mul_(p > 0.2)
    head(p * x).pow(2).mean().backward()
"""
IN_A_METHOD = """\
import torch
from torch import nn


@torch.no_grad()
def prune(w):
    w.mul_(w > 0.2)


net = nn.Linear(4, 4)
for _ in range(3):
    x = torch.randn(5, 4)
    w = net(x).softmax(-1)
    prune(w)
    (w * x).pow(2).mean().backward()
"""


def test_a_refused_write_that_autograd_does_not_see_is_asked_about_too(fixed):
    """PyTorch raises for the save. A clone for that would silently keep the write out of the gradient, and a new tensor
    made under `no_grad` would cut it off."""
    done, left = fixed(ROUTER, writing=True)
    assert (done.status, done.diff, left) == (1, "", ROUTER)
    assert "only the author can say what is meant" in "\n".join(done.words)
    added = [line.removeprefix("      +").strip() for line in done.words if line.startswith("      +")]
    assert added == ["p = p + (p * (p > 0.2) - p).detach()", "p = p * (p > 0.2)"]
    assert sum("with torch.no_grad()" in line for line in done.words if line.startswith("      -")) == 2
    norms = [line for line in done.words if line.startswith("    if the ")]
    assert len(norms) == 2
    assert all("`router.weight` 0." in line for line in norms)


def test_a_reading_that_computes_something_else_is_not_shown(fixed):
    """The caller's tensor is written in a function that returns nothing: a new one would be lost."""
    done, _ = fixed(IN_A_METHOD)
    assert done.status == 1
    assert "only the author can say what is meant" in "\n".join(done.words)
    assert not [line for line in done.words if line.startswith("      +")]


BUFFERS = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return x + torch.relu(self.bn(self.fc(x * self.scale)))


blocks, head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(4, 1)
for _ in range(4):
    x = torch.randn(8, 4)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    with torch.no_grad():
        for block in blocks:
            block.scale.mul_(0.9)
    head(x).sum().backward()
print(blocks[0].bn.num_batches_tracked.item(), blocks[0].bn.running_mean.tolist())
"""


def test_a_patch_that_lets_statistics_stand_still_is_not_proven(fixed):
    done, left = fixed(BUFFERS, writing=True)
    assert done.status == 0, done.words
    assert 'functional_call, block, {"scale": block.scale.clone()}, (x,)' in left


COMPILED = """\
import torch

model = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")
for _ in range(2):
    {write}model(torch.randn(2, 4)).pow(2).mean().backward()
"""


def test_programs_that_are_compiled(fixed):
    done, _ = fixed(COMPILED.format(write=""))
    assert (done.status, done.words) == (0, ["noclobber: nothing to fix: no write broke a gradient (2 backward calls)"])
    broken = COMPILED.format(write="h = torch.ones(2, requires_grad=True).exp(); h += 1; h.sum().backward(); ")
    done, left = fixed(broken, writing=True)
    assert done.status == 0, done.words
    assert "h = h + 1;" in left


def test_what_is_printed_counts(fixed):
    """Out of place, the caller's tensor would stay as it was, which shows in nothing else."""
    done, left = fixed(
        "import torch\nw = torch.ones(2, requires_grad=True)\n"
        "def shifted(t):\n    s = t * t\n    t.data.add_(1)\n    return s\n"
        "h = w * 2\nshifted(h).sum().backward()\nprint(h.sum().item())\n",
        writing=True,
    )
    assert done.status == 0, done.words
    assert "t.data.add_(1)" in left
    assert left.count("clone()") >= 1


TWO_SAVES = """\
import torch

x = torch.ones(3, requires_grad=True)
h = torch.tanh(x * 2)
y = h.square()
with torch.no_grad():
    h.zero_()
y.sum().backward()
"""


def test_a_write_that_spoils_two_saves_is_one_question(fixed):
    done, _ = fixed(TWO_SAVES)
    assert sum(line.startswith("NC101") for line in done.words) == 1
    assert done.words[-1] == "noclobber: no proven fix; 1 finding left"


HANDED_OUT = """\
import torch

torch.manual_seed(0)
net, head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
for _ in range(2):
    h = torch.sigmoid(net(torch.randn(4, 2)))
    {}array = h.detach().numpy()
    array *= 3.0
    {}
    head(h).sum().backward()
"""


@pytest.mark.parametrize("between", ["", "h = h.view(2, 6).view(4, 3)"])
def test_values_that_numpy_writes_and_the_forward_goes_on_with_are_asked_about(fixed, between):
    """PyTorch cannot tell whether the gradient should follow them: a clone would keep the write out of it."""
    text = HANDED_OUT.format("", between)
    done, left = fixed(text, writing=True)
    assert (done.status, done.diff, left) == (1, "", text)
    assert "only the author can say what is meant" in "\n".join(done.words)
    assert [line.strip().partition(":")[0] for line in done.words if line.startswith("    if ")] == [
        "if the gradient should pass as if nothing had happened",
        "if only the code that writes should see it",
    ]


def test_values_that_numpy_writes_and_nothing_goes_on_with_are_copied(fixed):
    text = HANDED_OUT.format("y = head(h).sum(); ", "").replace("head(h).sum().backward", "y.backward")
    done, left = fixed(text, writing=True)
    assert done.status == 0, done.words
    assert "h.detach().numpy().copy()" in left


RESET = """\
import torch

w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = torch.zeros(3)
for _ in range(2):
    h = torch.tanh(w + h)
    loss = h.square().sum()
    h.data[0] = 0.0
    {}
    w.grad = None
    loss.backward()
print(w.grad)
"""


def test_a_write_that_means_the_same_in_each_reading_is_mended(fixed):
    """Here only the next turn reads what is written, detached; with the graph it is asked about."""
    done, left = fixed(RESET.format("h = h.detach()"), writing=True)
    assert "the gradient is the same whether it follows the write or leaves it out" in "\n".join(done.words)
    w = torch.tensor([1.0, 2.0, 3.0])
    h = torch.tanh(w) * torch.tensor([0.0, 1.0, 1.0])
    h = torch.tanh(w + h)
    by_hand = 2 * h * (1 - h.square())
    printed = subprocess.run([sys.executable, "-c", left], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(by_hand)
    done, left = fixed(RESET.format("loss = loss + h.sum()"), writing=True)
    assert left == RESET.format("loss = loss + h.sum()")
    assert any("only the author can say" in line for line in done.words)


QUANTISED = """\
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
def quantise(module, args, output):
    output.data.copy_(torch.round(output.data * 4) / 4)
net[1].register_forward_hook(quantise)
net(torch.randn(5, 3)).square().mean().backward()
"""
MASKED = """\
import torch

torch.manual_seed(0)
w, x = torch.randn(3, 4, requires_grad=True), torch.randn(2, 3)
@torch.no_grad()
def mask(h):
    h[:, :2] = 0
h = x @ w
mask(h)
torch.sigmoid(h).sum().backward()
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (QUANTISED, "+    return output + (torch.round(output * 4) / 4 - output).detach()"),
        (MASKED, "-@torch.no_grad()"),
    ],
)
def test_a_write_in_a_function_of_its_own_has_a_meaning_that_can_be_chosen(fixed, text, line):
    done, left = fixed(text, writing=True)
    assert (done.diff, left) == ("", text)
    assert f"      {line}" in done.words
