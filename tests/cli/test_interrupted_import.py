"""Ctrl-C while noclobber, or torch, is imported: the command ends as an interrupted program does, and says why."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from .running import RUN, call, fresh, write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
"""A `sitecustomize` that presses Ctrl-C when a module is imported."""


def test_nothing_was_watched_as_the_program_was_interrupted(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import torch", "torch.py": "import os, signal; os.kill(os.getpid(), signal.SIGINT)"})
    ended = fresh(["run", "main.py"], tmp_path)
    said = "noclobber: nothing was watched: the program was interrupted while it imported torch"
    assert ended.stderr.splitlines()[-1] == said
    assert ended.status == -signal.SIGINT


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("noclobber.cli", ""),
        ("argparse", ""),
        ("noclobber.render.text", ""),
        ("noclobber.session.program", "noclobber: interrupted\n"),
        ("noclobber.processes.member", "noclobber: interrupted\n"),
        ("noclobber.session.session", "noclobber: interrupted\n"),
        ("noclobber.mend.shown", "noclobber: interrupted\n"),
    ],
)
def test_an_import_of_noclobber_that_is_interrupted_shows_no_traceback(tmp_path: Path, module: str, said: str) -> None:
    program = "import torch\nx = torch.ones(2, requires_grad=True).exp()\nx.data.mul_(2)\nx.sum().backward()\n"
    write(tmp_path, {"main.py": program, "site/sitecustomize.py": INTERRUPTS})
    env = {"INTERRUPTED": module, "PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(tmp_path)}
    ended = call([*RUN, "main.py"], tmp_path, env=env)
    assert (ended.status, ended.stdout, ended.stderr) == (130, "", said)
    assert list(tmp_path.glob("noclobber-*")) == []
