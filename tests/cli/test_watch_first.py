"""`run --watch-first N`: the first backward calls are watched, reported at once, and again at the end."""

from __future__ import annotations

import json
from pathlib import Path

from .running import assert_same, noclobber, write

FIRST = """
    import torch
    for number in range(5):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        if number in (0, 3):
            y.data.mul_(2)
        y.sum().backward()
        print(number, x.grad.tolist(), torch._C._autograd._top_saved_tensors_default_hooks(True) is None, flush=True)
    """


def test_only_the_first_backward_calls_are_watched(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": FIRST})
    ended = noclobber(["run", "--watch-first", "2", "train.py"], tmp_path)
    printed = [line.split("] ")[1] for line in ended.stdout.splitlines()]
    assert printed == ["False", "False", "True", "True", "True"]
    early, last = ended.stderr.split("error[NC201]")[1:]
    for report in (early, last):
        assert "noclobber: 1 error, at 1 line" in report
        assert "seen 2 times" not in report
        assert "not watched: what came after the first 2 backward calls (`--watch-first`)" in report
    assert ended.status == 1


def test_a_stream_of_json_gets_one_document(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": FIRST})
    ended = noclobber(["run", "--watch-first", "2", "-f", "json", "train.py"], tmp_path)
    assert json.loads(ended.stderr)["coverage"]["backwards"] == 2
    early = noclobber(["run", "--watch-first", "2", "-f", "concise", "train.py"], tmp_path)
    assert early.stderr.count("train.py:6:9: NC201 ") == 2


def test_a_right_program_is_not_called_right_as_a_whole(tmp_path: Path) -> None:
    code = "import torch\nfor _ in range(4): torch.ones(3, requires_grad=True).exp().sum().backward()"
    ended = noclobber(["run", "--watch-first", "3", "-c", code], tmp_path)
    assert ended.stderr.count("nothing found in what was watched (3 backward calls)") == 2
    assert ended.status == 0


def test_a_program_of_fewer_calls_is_reported_once(tmp_path: Path) -> None:
    code = "import torch\nfor _ in range(3): torch.ones(3, requires_grad=True).exp().sum().backward()"
    assert_same(tmp_path, ["-c", code], footer="noclobber: nothing found in 3 backward calls\n", options=[])
    ended = noclobber(["run", "--watch-first", "3", "-c", code], tmp_path)
    assert ended.stderr == "noclobber: nothing found in 3 backward calls\n"


def test_a_child_watches_its_own_first_calls(tmp_path: Path) -> None:
    write(
        tmp_path, {"train.py": FIRST, "main.py": "import subprocess, sys; subprocess.run([sys.executable, 'train.py'])"}
    )
    words = ["run", "--watch-first", "2", "-f", "json", "-o", "report.json", "main.py"]
    assert noclobber(words, tmp_path).stdout.count(" True") == 3
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["coverage"]["backwards"], [one["count"] for one in report["findings"]]) == (2, [1])
