"""What proves patches of one program."""

from contextlib import ExitStack

import pytest

from noclobber.fix.edits.patch import Patch
from noclobber.fix.proof.trials import launcher
from noclobber.fix.proof.trials.job import Order
from noclobber.fix.proof.trials.launcher import launching
from noclobber.fix.proof.verdicts import Prover
from tests import served
from tests.fix import programs

SECONDS = 3600
"""That no trial takes, however busy the machine is."""


class Bench:
    """A program, searched once, and what proves patches of it."""

    def __init__(self, folder, text, backwards=3):
        self.path = folder / "program.py"
        self.path.write_text(text)
        self.stack = ExitStack()
        self.launcher = self.stack.enter_context(launching(["program.py"]))
        search = self.launcher.run(Order("search", backwards, SECONDS))
        self.finding = search.findings[0]
        self.prover = Prover(self.launcher, search, backwards, SECONDS)
        self.prover.meet(self.finding, search.findings[:1], search, Patch())

    def judged(self, *pairs, mode="watch", **about):
        return self.judge(programs.replaced(self.path, *pairs), mode, **about)

    def judge(self, patch, mode="watch", **about):
        return self.prover.judge(self.prover.start(patch, mode), patch, Patch(), self.finding, **about)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "_spawned", served.spawned)
    made = []

    def make(text, **options):
        made.append(Bench(tmp_path, text, **options))
        return made[-1]

    yield make
    for one in made:
        one.stack.close()
