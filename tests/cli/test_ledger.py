"""`noclobber run --ledger`: the table after the report, and the ledger in the JSON and the page."""

from __future__ import annotations

import json
from pathlib import Path

from .running import fresh, noclobber, write

PROGRAM = """
    import torch
    x = torch.ones(100, requires_grad=True)
    y = x.exp()
    y.sum().backward()
    """


def test_the_table_follows_the_report(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    ended = noclobber(["run", "--ledger", "train.py"], tmp_path)
    assert ended.status == 0
    assert ended.stderr.splitlines()[2:] == [
        "kept for backward at the peak: 400 B in 1 storage; reached at train.py:3, before backward 1",
        "bytes   share  line        module  operator  source",
        "400 B  100.0%  train.py:3          exp       y = x.exp()",
    ]


def test_a_saved_report_shows_it_too(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    noclobber(["run", "--ledger", "--format", "json", "-o", "report.json", "train.py"], tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["ledger"]["bytes"] == 400
    assert "400 B  100.0%  train.py:3" in noclobber(["report", "report.json"], tmp_path).stdout
    assert noclobber(["report", "--format", "html", "report.json"], tmp_path).stdout.startswith("<!doctype html>")


def test_a_program_without_torch_has_none(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "print(1)"})
    assert "kept" not in fresh(["run", "--ledger", "train.py"], tmp_path).stderr
