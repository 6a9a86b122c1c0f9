"""What wrappers and collectives of several ranks write: legal training is as it is bare, what is wrong is blamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed

from .. import served
from ..cli.running import noclobber

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
HERE = Path(__file__).parent
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


def test_legal_training_has_the_same_bits_and_no_finding(tmp_path: Path) -> None:
    program = str(HERE / "legal.py")
    bare = served.run([*TORCHRUN, program], tmp_path)
    ended = noclobber(["run", *TORCHRUN, program], tmp_path)
    assert len(bare.stdout.splitlines()) == 10
    assert sorted(ended.stdout.splitlines()) == sorted(bare.stdout.splitlines())
    assert "noclobber: nothing found in what was watched (30 backward calls, 3 processes)" in ended.stderr


def test_what_is_wrong_on_a_rank_is_blamed_there(tmp_path: Path) -> None:
    program = HERE / "wrong.py"
    noclobber(["run", "--format", "json", "-o", "report.json", *TORCHRUN, str(program)], tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    lines = program.read_text().splitlines()
    ranks = {one["id"]: one["rank"] for one in report["processes"]}
    found = {}
    for finding in report["findings"]:
        blamed = next(one["line"] for one in finding["labels"] if one["primary"])
        mark = lines[blamed - 1].partition("# ")[2]
        found[mark] = (finding["code"], sorted(ranks[one] for one in finding["processes"]))
    assert found == {
        "broadcast": ("NC105", [1]),
        "logging": ("NC203", [0, 1]),
        "one rank": ("NC201", [1]),
        "hook": ("NC206", [0, 1]),
    }
