"""A few entries of PyTorch's own databases, drawn by the day, do under noclobber what they do bare; CI runs a tenth."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_some_entries_are_the_same_in_every_mode():
    """In a process of its own, which an operator may take down; at the end of its output are the words to repeat it."""
    options = ["--part", "0.01", "--seed", date.today().isoformat(), "--samples", "2", "--jobs", "1"]
    command = [sys.executable, "-m", "tests.conformance.drive", *options]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{' '.join(command)}"
    entries, samples, programs, values = map(int, re.search(SUMMARY, done.stdout).groups())
    assert entries > 7
    assert entries < samples < programs
    assert values > 10 * programs, done.stdout


SUMMARY = r"(\d+) entries in \d+ s: (\d+) samples, (\d+) programs in 5 modes, (\d+) values compared"
