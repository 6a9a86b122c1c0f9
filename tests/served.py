"""Runs the command line in forks of one process that has imported torch: each run takes a fraction of a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVER = """
import json, os, sys
leave = os._exit  # `noclobber run` reports in the one that the program finds
import noclobber.cli, noclobber.observe.subscription, torch
torch.ones(1, requires_grad=True).sum().backward()  # torch imports much for the first
for line in sys.stdin:
    folder, words = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        status = noclobber.cli.main(words)
        sys.stdout.flush()
        leave(status)
    os.waitpid(child, 0)
    print(flush=True)
"""
Run = Callable[[Sequence[str], Path], str]
"""Carries out a command line in a folder, and returns all that it printed."""


@contextmanager
def served() -> Iterator[Run]:
    """Start the process, and end it with the block."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ) as server:
        assert server.stdin
        assert server.stdout
        asks, answers = server.stdin, server.stdout

        def run(words: Sequence[str], folder: Path) -> str:
            print(json.dumps([str(folder), list(words)]), file=asks, flush=True)
            assert answers.readline() == "\n"
            return folder.joinpath("said").read_text()

        yield run
        asks.close()
