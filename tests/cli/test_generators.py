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
        sys.exit(f"{text}: {stage}")

import os
import noclobber
from noclobber.blocks.installing import Installed

def stages(text, reports):
    seed()  # a fork begins with other numbers
    around = eval(text)
    with around:
        check("arming")
        for _ in range(2):
            try:
                clobber()
            except RuntimeError:
                pass
            check("a finding")
    check("the end")
    if isinstance(around, Installed):
        around.uninstall()
        check("uninstalling")
    report = around.report
    check("a report")
    from noclobber.render import FORMATS, render
    for format in FORMATS if reports else ():
        for color in (False, True):
            render(report, format, color=color)
        check(format)

text = "import"
check("at once")
for text, reports in AROUND.items():
    if not os.fork():
        stages(text, reports)
        sys.exit()
    if os.wait()[1]:
        sys.exit(1)
"""
AROUND = {
    "noclobber.install()": False,
    "noclobber.watch()": True,
    "noclobber.watch(contents=False)": True,
    "noclobber.preserve()": False,
}


def test_no_generator_moves():
    """In a process of its own, where everything is imported for the first time, and a fork of it for each way."""
    command = [sys.executable, "-W", "ignore", "-c", f"AROUND = {AROUND}{STATES}{STAGES}"]
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
