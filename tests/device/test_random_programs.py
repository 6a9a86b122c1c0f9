"""Random programs on a device, in every mode: right gradients, no false alarm, the same bits."""

import warnings
from dataclasses import replace

import pytest

import noclobber
from tests.device import sham
from tests.device.places import MODES, SEEING
from tests.fuzz import preserved
from tests.fuzz.judge import FAULTS, Outcome, first_line, judge, run, unlike
from tests.fuzz.programs import random_program
from tests.fuzz.statements import ON_THE_CPU, moved

MANY = 30
ON_DEVICES = pytest.mark.parametrize("device", [sham.NAME, pytest.param("cuda", marks=pytest.mark.gpu)])
"""MPS has no numbers of 64 bits, which the programs compute with."""


def programs(device, kind, without=()):
    for number in range(MANY):
        yield moved(random_program(f"device-{kind}-{number}", (*ON_THE_CPU, *without)), device)


@ON_DEVICES
@pytest.mark.parametrize("mode", SEEING)
def test_the_promise_on_a_device(mode, device):
    outcomes = set()
    for program in programs(device, "versions"):
        verdict = judge(program, MODES[mode])
        outcomes.add(verdict.outcome)
        assert verdict.outcome not in FAULTS, f"{verdict.outcome.value} {verdict.codes} {verdict.why}\n{program}"
    assert {Outcome.QUIET, Outcome.RAISED} < outcomes


@ON_DEVICES
def test_gradients_are_right_under_preserve_on_a_device(device):
    outcomes = []
    for program in programs(device, "preserve", ("hook", "grad write")):
        verdict = preserved.judge(program)
        outcomes.append(verdict.outcome)
        assert verdict.outcome not in FAULTS, f"{verdict.outcome.value} {verdict.why}\n{program}"
    assert outcomes.count(Outcome.QUIET) > 0.8 * MANY, outcomes


@ON_DEVICES
def test_installed_nothing_changes_on_a_device(device):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in programs(device, "install"):
            bare, installed = run(program), run(program, noclobber.install)
            assert first_line(installed.error) == first_line(bare.error), program
            assert bare.values.keys() == installed.values.keys()
            assert not unlike(program, bare, installed), program


BOTH = """
import torch
b = torch.linspace(0.1, 0.7, 4, dtype=torch.float64, device="sham").requires_grad_()
y = torch.ones(3, 4, dtype=torch.float64, device="sham")
y.mul_(b)
z = y.cpu().sin().to(y.device) * y
((b - b.exp()).sum() / 3 + (z * z).mean()).backward()
"""


@pytest.mark.parametrize("device", [sham.NAME])
def test_rounding_is_no_difference_where_two_threads_run_a_backward(device):
    """Bare PyTorch gives other bits from one run to the next there; other numbers are a difference."""
    bare = run(BOTH)
    assert bare.error is None
    last = bytearray(bare.values["b.grad"][-1])
    last[0] ^= 1
    other = replace(bare, values=bare.values | {"b.grad": (*bare.values["b.grad"][:-1], bytes(last))})
    assert unlike(BOTH, bare, other) == []
    assert unlike(BOTH.replace(".cpu()", ""), bare, other) == ["b.grad"]
    last[7] ^= 1
    other = replace(bare, values=bare.values | {"b.grad": (*bare.values["b.grad"][:-1], bytes(last))})
    assert unlike(BOTH, bare, other) == ["b.grad"]
