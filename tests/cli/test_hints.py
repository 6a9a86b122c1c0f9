"""`noclobber run --hints`: what is shown after the report, and only if it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

from .running import noclobber, write

PROGRAM = """
    import torch
    x = torch.ones(1000, requires_grad=True)
    small = torch.ones(10, requires_grad=True) + 1
    small += 1
    h = x + 1
    y = h * 3
    torch.empty(9000)
    y.sum().backward()
    """


def test_hints_only_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    quiet = noclobber(["run", "train.py"], tmp_path)
    assert "hint" not in quiet.stderr
    ended = noclobber(["run", "--hints", "train.py"], tmp_path)
    assert ended.status == 0
    assert "hint[NC901]: `mul` could write into `h`: the peak of memory falls by 4.0 kB" in ended.stderr
    assert ended.stderr.endswith(
        "next: noclobber explain NC901 NC902\nto apply and measure this: noclobber fix --hints train.py\n"
    )


def test_a_saved_report_holds_them(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    noclobber(["run", "--hints", "--format", "json", "-o", "report.json", "train.py"], tmp_path)
    found = json.loads((tmp_path / "report.json").read_text())
    first = found["findings"][0]
    assert (first["code"], first["severity"], first["hint"]["bytes"]) == ("NC901", "hint", 4000)
    assert found["program"]["fix"]["command"] == ["noclobber", "fix", "--hints", "train.py"]
    assert "hint[NC901]" in noclobber(["report", "report.json"], tmp_path).stdout


def test_errors_come_first(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM.rstrip() + "\n    z = x.exp(); z.data.mul_(2); z.sum().backward()\n"})
    ended = noclobber(["run", "--hints", "--format", "concise", "train.py"], tmp_path)
    assert ended.status == 1
    codes = [line.split(": ")[1].split(" ")[0] for line in ended.stderr.splitlines()]
    assert codes == sorted(codes)
    assert {"NC201", "NC901"} <= set(codes)
