"""A patch may leave out gradients that no step gets, where the program itself does not look at them either."""

import pytest

from noclobber.fix.proof import verdicts
from noclobber.fix.proof.repairs import Level

SHARED = """\
import torch

torch.manual_seed(0)
trunk = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
head, value = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
mine = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.1)
theirs = torch.optim.SGD(value.parameters(), lr=0.1)
seen = []
BEFORE
for turn in range(5):
    h = torch.tanh(trunk(torch.randn(5, 3)))
    first, second = head(h).pow(2).mean(), (value(h) - 3).pow(2).mean()
    mine.zero_grad()
    theirs.zero_grad()
    first.backward(retain_graph=True)
    MINE
    mine.step()
    second.backward()
    AFTER
    theirs.step()
END
"""
LATER = (
    ("mine.step()", "pass"),
    ("second.backward()", "second.backward(inputs=list(value.parameters())); mine.step()"),
)
COPIES = "{name: one.clone() for name, one in trunk.named_parameters()}"
CLONE = ("trunk(torch.randn(5, 3))", f"torch.func.functional_call(trunk, {COPIES}, (torch.randn(5, 3),))")


def program(before="", mine="pass", after="pass", end=""):
    text = SHARED
    for name, value in (("BEFORE", before), ("MINE", mine), ("AFTER", after), ("END", end)):
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize(
    "used",
    [
        {},
        {"after": "seen.append([p.grad.norm() for p in value.parameters()])"},
        {"after": "if trunk[0].weight.grad is not None: trunk[0].weight.grad.zero_()"},
        {"mine": "torch.nn.utils.clip_grad_norm_(trunk.parameters(), 0.5)"},
        {"mine": "seen.append(trunk[0].weight.grad.norm())"},
        {"end": "seen.append(value.weight.grad.norm())"},
    ],
)
def test_gradients_that_nothing_looks_at_may_be_left_out(bench, used):
    it = bench(program(**used))
    assert it.finding.code == "NC103"
    assert it.judged(*LATER).level is Level.PROVEN
    assert it.judged(("    second.backward()", "    (second * 2).backward(inputs=list(value.parameters()))")).why


@pytest.mark.parametrize(
    ("used", "why"),
    [
        ({"after": "print(trunk[0].weight.grad.norm())"}, "reads another gradient of `trunk.0.weight`"),
        ({"after": "seen.append([p.grad.norm() for p in trunk.parameters()])"}, "reads another gradient of `trunk."),
        (
            {"after": "seen.append([getattr(p, 'grad') for p in trunk.parameters()])"},
            "reads another gradient of `trunk.",
        ),
        ({"after": "torch.nn.utils.clip_grad_norm_(trunk.parameters(), 0.5)"}, "reads another gradient of `trunk."),
        (
            {"after": "if turn > 3: torch.nn.utils.clip_grad_norm_(trunk.parameters(), 0.5)"},
            "reads another gradient of",
        ),
        ({"end": "seen.append(trunk[0].weight.grad.norm())"}, "reads another gradient of `trunk.0.weight`"),
        (
            {"end": "later = lambda: seen.append(trunk[0].weight.grad.norm())"},
            "line 21 reads gradients",
        ),
        ({"before": "trunk[0].weight.register_hook(lambda gradient: seen.append(gradient.norm()))"}, "line 9 reads"),
    ],
)
def test_gradients_that_the_program_looks_at_may_not_be_left_out(bench, used, why):
    it = bench(program(**used))
    assert why in it.judged(*LATER).why
    kept = it.judged(CLONE)
    assert kept.level is Level.PROVEN


@pytest.mark.parametrize("name", ["trunk[0]", "value"])
def test_what_a_long_program_reads_in_the_end_is_not_known(bench, monkeypatch, name):
    monkeypatch.setattr(verdicts, "TO_THE_END", 0.0)
    it = bench(program(end=f"seen.append({name}.weight.grad.norm())"))
    assert "line 21 reads gradients" in it.judged(*LATER).why
