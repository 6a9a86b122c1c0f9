"""Trials draw the same random numbers where the program sets no seed, and those of its seed where it does."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.launcher import launching
from noclobber.observe.gradient_trace import evidence

DRAWS = {
    "torch": "torch.rand(())",
    "torch after seed()": "(torch.seed(), torch.rand(()))[1]",
    "random": "random.random()",
    "random after seed()": "(random.seed(), random.random())[1]",
    "an instance of random": "random.Random().random()",
    "numpy": "np.random.rand()",
    "numpy's new generator": "np.random.default_rng().random()",
    "numpy's old generator": "np.random.RandomState().rand()",
    "hashes": "hash('seed') % 1000",
    "a loader's order": "next(iter(DataLoader(torch.arange(1000.0), shuffle=True)))[0]",
    "a loader's workers": "next(iter(DataLoader(Drawn(), num_workers=1, multiprocessing_context='fork')))[0]",
}
PROGRAM = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Drawn(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return random.random() + np.random.rand() + torch.rand(())


drawn = [{draws}]
w = torch.ones(len(drawn), requires_grad=True)
print(*(float(one) for one in drawn))
(w * torch.tensor([float(one) for one in drawn])).sum().backward()
"""
UNSEEDED = PROGRAM.format(draws=", ".join(DRAWS.values()))


def gradients(launcher, fresh):
    """What a trial of the program has for gradients: the numbers that it drew."""
    result = launcher.run(Order("bare", 1, 3600, fresh=fresh))
    (call,) = [one for one in evidence.read(result.evidence) if one["kind"] == "backward"]
    return call["leaves"][0][1].tolist()


@pytest.fixture
def launched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "program.py").write_text(UNSEEDED)
    with launching(["program.py"]) as launcher:
        yield launcher


def test_without_a_seed_all_trials_draw_the_same(launched):
    """Bare, two runs differ in each of them."""
    first = gradients(launched, fresh=False)
    assert gradients(launched, fresh=False) == gradients(launched, fresh=True) == first
    assert len(set(first)) == len(DRAWS)
    bare = [
        subprocess.run([sys.executable, "program.py"], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    ]
    assert [what for what, one, other in zip(DRAWS, *bare, strict=True) if one == other] == []


def test_a_seed_of_the_program_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seeds = "random.seed(7); np.random.seed(7); torch.manual_seed(7)\n"
    draws = "torch.rand(()), random.random(), random.Random(7).random(), np.random.rand(), "
    draws += "np.random.default_rng(7).random(), np.random.RandomState(7).rand()"
    program = PROGRAM.format(draws=draws).replace("\n\nclass", f"\n{seeds}\n\nclass", 1)
    (tmp_path / "program.py").write_text(program)
    with launching(["program.py"]) as launcher:
        drawn = gradients(launcher, fresh=True)
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    wanted = [torch.rand(()).item(), random.random(), random.Random(7).random(), np.random.rand()]
    wanted += [np.random.default_rng(7).random(), np.random.RandomState(7).rand()]
    assert drawn == [torch.tensor(one).item() for one in wanted]
