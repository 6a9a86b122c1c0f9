"""Ctrl-C while a program imports torch: what could not be watched is said, and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .running import noclobber, write


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_nothing_was_watched_as_the_program_was_interrupted(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import torch", "torch.py": "import os, signal; os.kill(os.getpid(), signal.SIGINT)"})
    ended = noclobber(["run", "main.py"], tmp_path)
    said = "noclobber: nothing was watched: the program was interrupted while it imported torch"
    assert ended.stderr.splitlines()[-1] == said
