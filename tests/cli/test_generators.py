"""No global generator of random numbers moves, of Python, numpy or torch: a seeded program draws what it draws bare."""

import subprocess
import sys

import pytest

from tests import served

from .running import write

STATES = """
import random, sys
import numpy, torch

def seed():
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)

def states():
    return random.getstate(), [str(one) for one in numpy.random.get_state()], torch.get_rng_state().tolist()

def clobber():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    y.sum().backward()

seed()
before = states()
"""
STAGES = """
def check(stage):
    if states() != before:
        sys.exit(stage)

import noclobber
check("import")
around = {around}
with around:
    check("arming")
    for _ in range(2):
        try:
            clobber()
        except RuntimeError:
            pass
        check("a finding")
check("the end")
report = {report}
check("a report")
from noclobber.render import FORMATS, render
for format in FORMATS if report else ():
    for color in (False, True):
        render(report, format, color=color)
    check(format)
"""
AROUND = {
    "noclobber.install()": "around.uninstall()",
    "noclobber.watch()": "around.report",
    "noclobber.watch(contents=False)": "around.report",
    "noclobber.preserve()": "around.report and None",
}


@pytest.mark.parametrize("around", AROUND)
def test_no_generator_moves(around):
    """In a process of its own, where everything is imported for the first time."""
    program = STATES + STAGES.replace("{around}", around).replace("{report}", AROUND[around])
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


DRAWS = """
for _ in range(2):
    try:
        clobber()
    except RuntimeError:
        pass
with open("drawn", "a") as drawn:
    print(random.random(), numpy.random.rand(), torch.rand(1).item(), file=drawn)
clobber()
"""


@pytest.mark.parametrize("verb", [["run"], ["run", "--no-contents"], ["run", "--raise"], ["fix"]], ids=" ".join)
def test_a_program_draws_what_it_draws_bare(verb, tmp_path):
    write(tmp_path, {"main.py": STATES + DRAWS})
    drawn = tmp_path / "drawn"
    served.run(["main.py"], tmp_path)
    bare = drawn.read_text()
    drawn.unlink()
    served.run(["-m", "noclobber", *verb, "main.py"], tmp_path)
    assert set(drawn.read_text().splitlines()) == {bare.strip()}
