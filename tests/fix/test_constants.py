"""What nothing trains and is computed before a loop of steps is detached, where nobody misses its gradients."""

import pytest

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.levels import Level
from noclobber.mend.cures import candidates, sound
from noclobber.mend.scene import as_it_ran
from noclobber.model.source import source_text

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
encoder, head = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
x, y = torch.randn(4, 3), torch.randn(4, 1)
"""
LOOP = """
features = encoder(x)
for step in range(4):
    optimizer.zero_grad()
    (head(features) - y).square().mean().backward()
    optimizer.step()
"""
DETACHED = {
    "of a frozen network": LOOP,
    "whose shape is read": LOOP.replace("\nfor", "\nprint(features.shape)\nfor"),
    "beside gradients of what is trained": LOOP + "print(head.weight.grad, [p.grad for p in head.parameters()])\n",
    "of an expression": LOOP.replace("encoder(x)", "encoder(x) * 2"),
    "as an argument": """
def train(features):
    for step in range(4):
        optimizer.zero_grad()
        (head(features) - y).square().mean().backward()
        optimizer.step()
train(encoder(x))
""",
    "in an attribute": """
class Probe:
    def __init__(self):
        self.features = encoder(x)
    def fit(self):
        for step in range(4):
            optimizer.zero_grad()
            (head(self.features) - y).square().mean().backward()
            optimizer.step()
Probe().fit()
""",
    "of the file, in a function": """
features = encoder(x)
def fit():
    for step in range(4):
        optimizer.zero_grad()
        (head(features) - y).square().mean().backward()
        optimizer.step()
fit()
""",
}
KEPT = {
    "trained later": LOOP + "torch.optim.SGD(encoder.parameters(), lr=0.1).step()\n",
    "trained from a turn on": LOOP
    + "    if step == 2:\n        optimizer.add_param_group({'params': encoder.parameters()})\n",
    "trained by hand": LOOP + "with torch.no_grad():\n    for p in encoder.parameters():\n        p -= 0.1 * p.grad\n",
    "set anew": LOOP + "    encoder[0].weight.data = encoder[0].weight.data * 2\n",
    "whose gradient is read": LOOP + "print(encoder[0].weight.grad)\n",
    "whose gradient is read by a word": LOOP + "print(getattr(encoder[0].weight, 'gr' + 'ad'))\n",
    "whose gradient is read in a loop over both": LOOP
    + "for net in (encoder, head):\n    print([p.grad.norm() for p in net.parameters()])\n",
    "of a module whose length is 0, whose gradient is read": """
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.kept = nn.Parameter(torch.ones(3)), []
    def __len__(self):
        return len(self.kept)
    def forward(self, x):
        return x * self.gain
bank = Bank()
"""
    + LOOP.replace("encoder", "bank")
    + "print([p.grad for p in bank.parameters()])\n",
    "whose gradient is clipped": LOOP.replace(
        "    optimizer.step()",
        "    nn.utils.clip_grad_norm_([*encoder.parameters(), *head.parameters()], 0.1)\n    optimizer.step()",
    ),
    "of what is differentiated": "x.requires_grad_()" + LOOP + "print(torch.autograd.grad(encoder(x).sum(), x))\n",
    "that is asked for its graph": LOOP + "    assert features.grad_fn is not None\n",
    "that something else holds": LOOP.replace("\nfor", "\nrows = list(zip(features, y))\nfor").replace(
        "(head(features) - y)", "(head(rows[0][0]) - y[0])"
    ),
    "that a hook sees": LOOP.replace("\nfor", "\nencoder[0].weight.register_hook(print)\nfor"),
}


def told(bench, loop):
    """The program, and the change that `run` shows."""
    it = bench(HEAD + loop)
    assert it.finding.code in ("NC103", "NC104")
    return it, next(sound(it.finding, as_it_ran), None)


@pytest.mark.parametrize("loop", DETACHED.values(), ids=DETACHED)
def test_a_constant_is_detached_and_that_is_proven(bench, loop):
    it, shown = told(bench, loop)
    patch = Patch().edited(shown.edits)
    assert ".detach()" in shown.edits[0].replacement
    verdict = it.prover.judge(it.prover.start(patch), patch, Patch(), it.finding, way=shown.way)
    assert (verdict.right, verdict.level) == (True, Level.PROVEN)


@pytest.mark.parametrize("loop", KEPT.values(), ids=KEPT)
def test_what_somebody_may_miss_stays_in_the_graph(bench, loop):
    it, shown = told(bench, loop)
    tried = candidates(it.finding, source_text)
    assert not any(".detach()" in edit.replacement for one in (shown, *tried) if one is not None for edit in one.edits)


def test_where_there_is_no_optimizer_the_program_may_step_all_by_hand(bench):
    text = HEAD.replace("optimizer = torch.optim.SGD(head.parameters(), lr=0.1)\n", "")
    loop = LOOP.replace("    optimizer.step()\n", "").replace("optimizer", "head")
    it = bench(text + loop)
    assert it.finding.code == "NC104"
    assert it.finding.event.apart is None
