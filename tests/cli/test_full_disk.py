"""A disk without room loses no finding: the report says what could not be written, and follows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .running import RUN, call, write

WRONG = """
    import torch
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.data.mul_(2)
    y.sum().backward()
    """
FULL = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
os.execv(sys.argv[1], sys.argv[1:])
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")


@pytest.mark.parametrize("room", [0, 500], ids=["nothing fits", "the first lines fit"])
def test_a_folder_that_takes_nothing(tmp_path: Path, room: int) -> None:
    write(tmp_path, {"train.py": WRONG})
    limited = [sys.executable, "-c", FULL.format(room), *RUN]
    ended = call([*limited, "-o", "found/", "train.py"], tmp_path, env={"PYTHONDONTWRITEBYTECODE": "1"})
    first, rest = ended.stderr.split("\n", 1)
    assert first == "noclobber: cannot write `found/`: File too large; the report follows"
    assert rest.startswith("error[NC201]: ")
    assert ended.status == 1


def test_the_files_of_a_run_without_a_folder_are_not_needed(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": WRONG})
    ended = call([sys.executable, "-c", FULL.format(0), *RUN, "train.py"], tmp_path)
    assert ended.stderr.startswith("error[NC201]: ")
    assert ended.status == 1
